"""How good embeddings are: a linear probe, and the rivals that stand beside every result."""
