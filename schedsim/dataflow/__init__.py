"""What a training step is: chains, graphs, ops, tensors and their variants."""
