"""From a model to a graph or a chain, without allocating it."""
