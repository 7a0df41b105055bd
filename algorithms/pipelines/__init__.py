"""Planners of pipelines: what each stage recomputes, and where the layers are cut."""
