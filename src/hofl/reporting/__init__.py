"""Curves and figures from the files of runs. Images need the extra ``report``."""
