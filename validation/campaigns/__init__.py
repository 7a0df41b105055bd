"""Many models with many plans, measured on this machine, and the pages of results."""
