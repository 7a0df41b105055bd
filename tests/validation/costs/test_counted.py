"""Costs by operations: in proportion to flops, ties by what was measured."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from costed_steps import two_layers  # noqa: E402
from schedsim.validation.costs.counted import counted_costs  # noqa: E402
from schedsim.validation.costs.table import Costs  # noqa: E402


def test_products_share_the_time_by_their_flops():
    """Equal products take as long; what moves memory alone is next to free."""
    captured = two_layers()
    names = captured.graph.op_names
    measured = Costs({name: 1.0 + i for i, name in enumerate(names)}, {names[0]: 7}, "by hand")
    counted = counted_costs(captured, measured)
    total = sum(measured.time_s.values())
    products = [name for name in names if "mm" in name]
    ties = 1e-3
    flops_s = {n: counted.time_s[n] - ties * measured.time_s[n] for n in names}
    assert sum(flops_s.values()) == pytest.approx(total)
    assert flops_s["1.relu"] == pytest.approx(0, abs=1e-12)
    # Every product is one of 64 x 32 by 32 x 32, whichever way round.
    assert {round(flops_s[name] / total, 9) for name in products} == {round(1 / len(products), 9)}
    assert counted.time_s["1.relu"] == pytest.approx(ties * measured.time_s["1.relu"])
    assert counted.workspace_bytes == measured.workspace_bytes
    assert "by hand" in counted.source


def test_a_step_without_products_keeps_the_ties():
    """Nothing is divided by zero."""
    captured = two_layers()
    idle = counted_costs(captured, Costs(dict.fromkeys(captured.graph.op_names, 0.0), {}, "none"))
    assert set(idle.time_s.values()) == {0.0}
