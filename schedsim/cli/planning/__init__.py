"""What ``schedsim plan`` does: one plan, the largest size, a model's ways to spend less; advice."""
