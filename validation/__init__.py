"""Real PyTorch models: capture, profile, run a schedule, compare. Only here is torch needed."""
