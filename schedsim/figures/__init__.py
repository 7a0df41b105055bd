"""Figures of memory, time and pipelines, the report page, and pictures in notebooks."""
