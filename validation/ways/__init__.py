"""Other ways to spend less than recomputation: chunks, micro-batches, host memory."""
