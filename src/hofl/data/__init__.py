"""Tasks, their encoding as batches, and the split over clients."""
