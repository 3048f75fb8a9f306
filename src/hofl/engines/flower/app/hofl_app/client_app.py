"""The device's app."""

from hofl.engines.flower.client_app import app as app
