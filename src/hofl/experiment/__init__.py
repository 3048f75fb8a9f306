"""Experiments: configuration, the objects built from it, and the run directory."""
