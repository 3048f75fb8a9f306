"""Memory ahead of time: what a local step needs at every boundary, and what fits a budget."""
