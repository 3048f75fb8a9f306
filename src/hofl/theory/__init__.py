"""The paper's convergence analysis as functions, one file per result. NumPy only."""
