"""Configurations that ship with the package; `hofl run NAME` takes one by name."""
