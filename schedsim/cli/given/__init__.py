"""The input of the commands: workloads, plans and pipelines, read and checked."""
