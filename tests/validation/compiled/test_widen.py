"""Values that the backward makes of smaller ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, left_by  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.clusters import StorageReaders  # noqa: E402
from schedsim.validation.compiled.decompose import decompose  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.widen import widen_in_backward  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule  # noqa: E402

LOSS = nn.functional.mse_loss


def pooled():
    """Overlapping windows, so that a maximum may be that of several of them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Flatten(),
        nn.Linear(256, 3),
    )
    return model, (torch.randn(4, 2, 16, 16), torch.randn(4, 3)), LOSS


def kept_for_the_backward(program):
    """Formats and bytes of what the forward makes and the backward reads."""
    reading = StorageReaders(program)
    return {
        storage: program.storages[storage].size_bytes
        for storage, maker in reading.maker.items()
        if maker < program.seed and any(r > program.seed for r in reading.readers.get(storage, ()))
    }


def test_places_of_maxima_are_kept_as_a_byte_each(uncompiled):
    """Eight bytes each are there only while the backward of the pooling runs."""
    model, inputs, loss = pooled()
    captured = captured_step(model, inputs, loss)
    program = fused(captured.program, Groups())
    num_places = 4 * 4 * 8 * 8
    sizes = list(kept_for_the_backward(program).values())
    assert num_places in sizes
    assert 8 * num_places not in sizes
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    step = replace(captured, program=program, graph=graph).module(Schedule.store_all(graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(step, model, inputs), expected)


def test_what_the_forward_reads_as_well_stays(uncompiled):
    """Made in both halves, it would take another kernel where nothing need be recomputed."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = self.inner(x).to(torch.bfloat16).to(torch.float32)
            return wide @ wide.mT

    model = Cast()
    inputs = torch.randn(16, 16), torch.randn(16, 16)
    program = decompose(captured_step(model, inputs, LOSS).program)
    before = [call.name for call in program.calls]
    widen_in_backward(program)
    assert [call.name for call in program.calls] == before
