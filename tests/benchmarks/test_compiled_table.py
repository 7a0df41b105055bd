"""What the table of compiled steps compares with: gradients, and a step for its sizes alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compiled  # noqa: E402
from peer_methods.subjects import Subject  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def of_subject(monkeypatch):
    """The exact gradients of a small model that ends in `last`."""

    def exact(last):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), last)
        x = torch.randn(5, 3)
        subject = Subject("small", model, (x,), lambda y: y.square().sum(), [], [])
        monkeypatch.setattr(compiled, "load_subject", lambda name, *, quick: subject)
        return compiled.exact_gradients("small", True), x

    return exact


def test_exact_gradients_are_those_of_a_step_in_float64(of_subject):
    """The weights are those in float32; the gradients follow from the closed form of a layer."""
    found, x = of_subject(nn.Identity())
    torch.manual_seed(0)
    layer = nn.Linear(3, 4).double()
    made = layer(x.double()).tanh()
    by_row = 2 * made * (1 - made.square())
    torch.testing.assert_close(found[0], by_row.T @ x.double(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found[1], by_row.sum(0), rtol=1e-13, atol=1e-13)


def test_a_step_with_dropout_has_no_exact_gradients(of_subject):
    """In float64 it would draw other numbers."""
    assert of_subject(nn.Dropout(0.1))[0] is None
    assert of_subject(nn.Dropout(0.0))[0] is not None


@pytest.mark.slow
def test_a_second_model_is_compiled_for_its_own_sizes(monkeypatch):
    """Code for open sizes would be slower, and ours beside it would look quicker than it is."""
    seen = []

    def backend(graph, inputs):
        seen.extend(n for x in inputs for n in (x.shape if isinstance(x, torch.Tensor) else (x,)))
        return graph

    compile_for = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **more: compile_for(f, backend=backend, **more))
    torch.compiler.reset()
    for rows in (5, 6):
        given = (torch.randn(rows, 3),)
        subject = Subject("small", nn.Linear(3, 4), given, lambda y: y.square().sum(), [], [])
        compiled.compiled(subject, "base").run()
    assert {5, 6} <= set(seen)
    assert not any(isinstance(size, torch.SymInt) for size in seen)


def test_the_table_says_how_far_both_are_from_float64():
    row = {
        "model": "resnet",
        "quick": True,
        "memory": "kept",
        "setting": "ours 100%",
        "budget_bytes": 2,
        "peak_bytes": 1,
        "over_compile": 1.0,
        "gradients": 9e-3,
        "from_float64": 6e-6,
        "compile_from_float64": 9e-3,
    }
    assert "in float64 by 6e-06 (ours) and 9e-03 (torch.compile)" in compiled.report([row])
    row.pop("from_float64")
    assert "float64" not in compiled.report([row])


def test_a_setting_of_several_runs_has_their_median():
    shares = (1.057, 1.02, 1.03)
    rows = [
        {
            "model": "resnet",
            "quick": True,
            "setting": "selective",
            "run": run,
            "status": "ok",
            "peak_bytes": 2,
            "over_compile": 1.0,
            "ours": {"peak_bytes": 1, "over_compile": share, "over_peer": share},
        }
        for run, share in enumerate(shares)
    ]
    text = compiled.report(rows)
    assert "median 1.030 of their time, at most 1.030 (in one run 1.057)" in text
    assert text.count("| selective |") == 1
    assert "at most the budget in 3 of 3; 0 budgets are refused" in text
    assert "(in one run" not in compiled.report(rows[:1])


def test_the_table_says_how_busy_the_machine_was():
    row = {"model": "gpt2", "quick": True, "memory": "kept", "setting": "ours 80%"}
    row |= {"status": "infeasible"}
    assert "load" not in compiled.report([row])
    rows = [row | {"load": 2.2}, row | {"load": 9.7}]
    assert "- The machine's load was 2 to 10 meanwhile." in compiled.report(rows)
