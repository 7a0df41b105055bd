"""Real PyTorch models: capture, profile, run a schedule, compare. Nothing else needs torch."""
