"""Peak bytes and times of a real step."""
