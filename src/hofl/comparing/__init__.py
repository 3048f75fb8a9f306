"""Comparisons: methods x seeds x a grid as ordinary runs, several at a time, and their table."""
