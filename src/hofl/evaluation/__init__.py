"""Scores of a model on a task's test set."""
