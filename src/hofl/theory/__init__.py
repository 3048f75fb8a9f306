"""The paper's convergence analysis as functions: lemmas, theorem, trade-off. NumPy only."""
