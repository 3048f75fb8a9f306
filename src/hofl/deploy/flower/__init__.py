"""Flower as the transport: its messages, its apps, its commands. The only importer of flwr."""
