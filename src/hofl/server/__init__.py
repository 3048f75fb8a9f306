"""The server's side of a round: checks, aggregation, state. Never needs the model."""
