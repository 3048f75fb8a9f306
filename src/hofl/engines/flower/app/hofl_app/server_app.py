"""The server's app."""

from hofl.engines.flower.server_app import app as app
