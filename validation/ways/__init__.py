"""Ways besides recomputation to spend less memory: chunks, micro-batches, host memory."""
