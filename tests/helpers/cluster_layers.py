"""A layer of a rank of a cluster, as tests look at it."""

from dataclasses import replace

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.layer_ops import LayerWriter

FABRIC = replace(get_fabric("a100-80gb"), launch_s=0.0, compiled_launch_s=0.0)
"""Devices whose hosts take no time."""
_EIGHT_BITS = replace(get_fabric("h100-80gb"), launch_s=0.0, compiled_launch_s=0.0)


def layer(model, tokens, degrees=None, **settings):
    """A layer of `model`, its last, and its settings."""
    training = Training(**settings)
    found = get_architecture(model)
    fabric = _EIGHT_BITS if training.float8 else FABRIC
    writer = LayerWriter(found, degrees or Degrees(), training, tokens, fabric)
    return writer.layer(found.experts is not None), training
