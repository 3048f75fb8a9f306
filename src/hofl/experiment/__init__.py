"""A run: its configuration, what is built from it, the loop of rounds, the run directory."""
