"""A step with its loss: asked for, captured, planned, compared, and planned anew as it changes."""
