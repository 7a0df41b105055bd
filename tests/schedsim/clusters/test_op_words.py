"""What a rank does, in words."""

from __future__ import annotations

import pytest

from schedsim.clusters.op_words import in_words

NAMES = {
    "wide' 0 3": "the backward of the wide logits, chunk 0, micro-batch 3",
    "embed 1": "the embedding, micro-batch 1",
    "unpack W 7": "unpacking the gathered weights of layer 7",
    "gather W ends": "gathering the weights of embedding and head",
    "sum head 2": "adding up the gradients of the head",
    "receive' 15 0": "the message with the gradient of the input of layer 15, micro-batch 0",
    "add d.n1.whole+0 31 0": "adding up the gradient of n1.whole in layer 31, micro-batch 0",
    "k.turned.wide' 4 1": "the backward of k.turned.wide in layer 4, micro-batch 1",
    "outputs": "outputs",
    "offload 3 1": "copying to the host what is kept of layer 3, micro-batch 1",
    "fetch 3 1": "copying back what was kept of layer 3, micro-batch 1",
    "gate 3 1 again": "gate again in layer 3, micro-batch 1",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_put_in_words(name):
    """Layers, ends of the model, chunks of the loss, and messages."""
    assert in_words(name) == NAMES[name]
