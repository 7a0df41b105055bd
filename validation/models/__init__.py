"""Models to validate on, of any size."""
