"""The server's app."""

from hofl.deploy.flower import server_app

app = server_app.app  # an assignment: Flower looks for one before it starts a run
