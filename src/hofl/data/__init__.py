"""Tasks, their encoding, and the split over clients."""
