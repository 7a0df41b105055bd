"""What the commands are given: workloads, plans and pipelines, read and checked."""
