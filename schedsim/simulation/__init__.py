"""What happens when a schedule runs: the simulator, the engine of several streams, traces."""
