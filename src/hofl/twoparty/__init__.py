"""Split workflows: a client with the bottom and a server with the top, one exchange per step."""
