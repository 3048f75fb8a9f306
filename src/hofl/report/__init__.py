"""Curves and figures from the files of runs. Plotting libraries are the extra ``report``."""
