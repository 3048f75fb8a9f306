"""Who may talk to a server: certificates, the gateway in front of it, a device's way through."""
