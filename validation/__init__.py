"""Real PyTorch models: capture, profile, run a schedule, compare. The only package that needs torch."""
