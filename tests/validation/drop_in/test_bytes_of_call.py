"""The call that gives a model its budget is within the budget too, or a line says why not."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.block_level.repeated_forward import untouched  # noqa: E402
from schedsim.validation.capture.capture import record_step  # noqa: E402
from schedsim.validation.drop_in.checks.plain_check import MadeUpGradients  # noqa: E402
from schedsim.validation.guards.differential import Both  # noqa: E402
from schedsim.validation.measure import AllocatorMeter  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.cpp_extension import is_ninja_available  # noqa: E402

import schedsim  # noqa: E402

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
NODES, WIDTH = 512, 16
MATRIX = 4 * NODES**2


class Gcn(nn.Module):
    """A graph network whose adjacency matrix, a buffer or an input, is most of its memory."""

    def __init__(self, depth=4, holds=True):
        super().__init__()
        if holds:
            self.register_buffer("adjacency", adjacency())
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x, matrix=None):
        matrix = self.adjacency if matrix is None else matrix
        for layer in self.layers:
            x = torch.relu(matrix @ layer(x))
        return x


def adjacency():
    return torch.rand(NODES, NODES).lt(8 / NODES).float() / 8


def most(run):
    """The most bytes of the allocator in `run`, beyond those before."""
    [reading] = AllocatorMeter().read(run)
    return reading.peak_bytes


def restored(model):
    with untouched(model):
        model.adjacency.zero_()


def test_copies_of_buffers_take_no_memory_of_the_device():
    model, x = Gcn(), torch.randn(NODES, WIDTH)
    before = model.adjacency.clone()
    assert most(lambda: restored(model)) < MATRIX / 2
    assert torch.equal(model.adjacency, before)
    assert most(lambda: record_step(model, MadeUpGradients().loss, (x,), {})) < MATRIX


def test_an_input_that_the_backward_reads_is_not_there_twice():
    model, x, matrix = Gcn(holds=False), torch.randn(NODES, WIDTH), adjacency()
    both = Both(model, None, None, lambda found: [found], MadeUpGradients().loss)
    small = torch.zeros(1)

    def plain_step():
        both.run(model, (x, matrix), {}, lambda t: small, lambda t: small, saves_elsewhere=True)

    plain_step()
    assert most(plain_step) < MATRIX


COUNTED = """
import gc, sys, torch
sys.path[:0] = [{benchmarks!r}, {here!r}]
from live_bytes import counter
counted = counter()
from test_bytes_of_call import NODES, WIDTH, Gcn, adjacency
import schedsim
torch.manual_seed(0)
for holds in (True, False):
    model, x = Gcn(12, holds), torch.randn(NODES, WIDTH)
    given = (x,) if holds else (x, adjacency())
    model(*given).square().mean().backward()
    model.zero_grad()
    gc.collect()
    before = counted.live_bytes()
    counted.reset_peak()
    model(*given).square().mean().backward()
    model.zero_grad()
    budget = before + int(0.6 * (counted.peak_bytes() - before))
    counted.reset_peak()
    schedsim.rematerialize(model, given, budget, in_place=True, effort=0.1)
    print("SHARE", counted.peak_bytes() / budget)
    del model, x, given
"""


@pytest.mark.slow
@pytest.mark.skipif(not is_ninja_available(), reason="the counter of live bytes is compiled")
def test_the_call_is_within_the_budget(tmp_path):
    """By the allocator's live bytes, in a process of its own, that has measured no op before."""
    code = COUNTED.format(benchmarks=str(BENCHMARKS), here=str(Path(__file__).parent))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SCHEDSIM_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    shares = [float(line.split()[1]) for line in run.stdout.splitlines() if "SHARE" in line]
    assert len(shares) == 2
    assert max(shares) <= 1.0


class Skips(nn.Module):
    """Whose plain forward holds half of its results in Python, as a U-Net does."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(16))

    def forward(self, x):
        held = []
        for layer in self.layers[:8]:
            x = torch.tanh(layer(torch.tanh(x)))
            held.append(x)
        for layer in self.layers[8:]:
            x = torch.tanh(layer(x + held.pop()))
        return x


def lines_of_call(model, given, budget, **options):
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedsim.rematerialize(model, given, budget, in_place=True, effort=0.1, **options)
    return [str(w.message) for w in caught if "in the call" in str(w.message)]


@pytest.mark.slow
def test_what_the_plain_forward_holds_over_the_budget_is_said_once():
    """Eight results of 524 kB, and the step by schedules fits."""
    model, x = Skips(), (torch.randn(2048, 64),)
    (line,) = lines_of_call(model, x, 5_900_000)
    assert "has taken 6.1" in line
    assert "the plain forward" in line
    assert 'check="never"' in line
    assert line in schedsim.drop_in_report(model)
    assert lines_of_call(Skips(), x, 5_900_000, check="never") == []
    assert lines_of_call(Skips(), x, 9_800_000) == []


class Breaks(nn.Module):
    """Code between two graphs takes much for a moment."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    @torch.compiler.disable
    def between(self, x):
        return x + torch.zeros(1_000_000).sum()

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x))))


@pytest.mark.slow
def test_code_between_graphs_over_the_budget_is_said():
    (line,) = lines_of_call(Breaks(), (torch.randn(256, 64),), 1_000_000)
    assert "has taken 4." in line


class BrokenSkips(Skips):
    """The skip connections lead over a graph break."""

    def forward(self, x):
        held = []
        for layer in self.layers[:8]:
            x = torch.tanh(layer(torch.tanh(x)))
            held.append(x)
        torch._dynamo.graph_break()
        for layer in self.layers[8:]:
            x = torch.tanh(layer(x + held.pop()))
        return x


@pytest.mark.slow
def test_over_a_share_the_line_of_the_call_comes_when_the_share_is_known():
    """The code between the graphs is measured in the loop."""
    torch.manual_seed(0)
    model, x = BrokenSkips(), torch.randn(256, 64)
    assert lines_of_call(model, (x,), "60%") == []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            model(x).square().mean().backward()
            model.zero_grad()
    (line,) = [str(w.message) for w in caught if "in the call" in str(w.message)]
    assert line in schedsim.drop_in_report(model)
