"""Memory before a run: what a local step needs at every boundary, and what fits a budget."""
