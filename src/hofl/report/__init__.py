"""Figures as files. The only home of the plotting libraries (the optional extra ``report``)."""
