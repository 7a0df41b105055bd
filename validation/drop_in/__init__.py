"""A user's own loop within a budget: torch.compile(model, backend="schedsim")."""
