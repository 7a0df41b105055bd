"""A layer of a rank of a cluster, as tests look at it."""

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.layer_ops import LayerWriter

FABRIC = get_fabric("a100-80gb")


def layer(model, tokens, degrees=None, **settings):
    """A layer of `model`, its last, and its settings."""
    training = Training(**settings)
    found = get_architecture(model)
    writer = LayerWriter(found, degrees or Degrees(), training, tokens, FABRIC)
    return writer.layer(found.experts is not None), training
