"""Trackers: rounds of a run in TensorBoard, Weights & Biases or MLflow, by their own libraries."""
