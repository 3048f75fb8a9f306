"""Watching runs: how far each is, how long it will take, and their report live in a browser."""
