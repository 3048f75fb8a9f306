"""The paper's experiments: complete configurations, and the numbers that it reports."""
