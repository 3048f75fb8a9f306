"""The server's side: checks and streaming aggregation. Needs the layout, never the model."""
