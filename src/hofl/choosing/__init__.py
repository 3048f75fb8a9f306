"""Choosing a sampling policy before a run: guide, pilot runs, measured statistics, the QP."""
