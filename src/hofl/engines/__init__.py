"""Engines: the loop of rounds, and how plans reach clients and uploads come back."""
