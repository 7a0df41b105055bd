"""The functions under recurrent layers."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.recurrent_functions import own_function, replaced_functions
from torch import nn


def test_layers_call_what_was_put_in_place():
    """And their own functions afterwards."""
    layer, x = nn.LSTM(2, 3), torch.ones(4, 1, 2)
    expected, _ = layer(x)
    seen = []

    def lstm(*given):
        seen.append(len(given))
        return own_function("lstm")(*given)

    with replaced_functions({"lstm": lstm}):
        found, _ = layer(x)
    assert torch.equal(found, expected)
    assert seen == [9]
    layer(x)
    assert seen == [9]
