"""What the commands say of results: facts of allocations, copies, levels and sweeps."""
