"""What is shown: figures of memory, time and pipelines, and the report."""
