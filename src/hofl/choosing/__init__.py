"""Choosing a sampling policy for a fleet: pilot runs over beta, and measured statistics."""
