"""Reading and writing workloads and plans as JSON."""
