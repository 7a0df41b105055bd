"""The parts of the output that commands share: allocations, copies, levels and sweeps."""
