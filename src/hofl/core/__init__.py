"""Shared by all layers: coordinates, directions, optimizers, randomness, errors."""
