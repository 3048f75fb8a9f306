"""The device's app."""

from hofl.deploy.flower import client_app

app = client_app.app  # an assignment: Flower looks for one before it starts a run
