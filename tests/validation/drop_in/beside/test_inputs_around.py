"""What a forward is given that Dynamo takes in pieces, and that no graph reads."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.beside.inputs_around import InputsAround  # noqa: E402
from torch import nn  # noqa: E402

ROWS, WIDTH = 64, 16


def test_what_graphs_read_and_parameters_count_elsewhere():
    around = InputsAround()
    read, kept, parameter = torch.zeros(10), torch.zeros(100), torch.zeros(1000)
    around.see([{"read": read}, [kept, kept[:5]], parameter, "no tensor"])
    around.reads([read])
    around.step_ends(lambda: {parameter.data_ptr()})
    assert around.num_bytes == 400
    around.step_ends(lambda: pytest.fail("later steps have nothing to count"))
    assert list(around.new_lines(0, 0)) == []
    [line] = around.new_lines(300, 7)
    assert "400 bytes" in line or "400 B" in line
    assert "300 B" in line or "300 bytes" in line
    assert "extra_bytes=407" in line
    assert list(around.new_lines(300, 7)) == []


class Layers(nn.Module):
    """Dynamo takes it, where it leaves torch's own modules behind a loop as they are."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(self.first(x).tanh())


class Joined(nn.Module):
    """Joins its crops within a loop that Dynamo gives up."""

    def __init__(self):
        super().__init__()
        self.layers = Layers()

    def forward(self, crops):
        found = []
        for k in range(0, len(crops), 2):
            torch._dynamo.graph_break()
            found.append(self.layers(torch.cat(crops[k : k + 2])))
        return torch.cat(found)


def lines_within(budget):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, crops = Joined(), [torch.randn(ROWS, WIDTH) for _ in range(4)]
    options = {"budget": budget, "effort": 0.1, "check": "never"}
    call = torch.compile(model, backend="schedsim", options=options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(4):
            call(crops).square().mean().backward()
            model.zero_grad()
    lines = [str(it.message) for it in said if "no graph reads" in str(it.message)]
    return session_of(options).peak_bytes, lines, sum(it.nbytes for it in crops)


def test_crops_that_a_loop_joins_are_told_of_where_steps_may_exceed_the_budget_by_them():
    peak, lines, num_bytes = lines_within("1MB")
    assert lines == []
    _, lines, _ = lines_within(peak + num_bytes // 2)
    [line] = lines
    assert f"extra_bytes={num_bytes}" in line
