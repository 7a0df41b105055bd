"""Training steps: chains, graphs, ops, tensors and their variants."""
