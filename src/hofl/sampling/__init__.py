"""Client sampling: marginals p and the draw of K distinct clients. NumPy only."""
