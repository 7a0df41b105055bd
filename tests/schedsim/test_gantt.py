"""Figures in time show the simulation's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from stream_graphs import random_stream_graph, random_stream_schedule
from tiers import slow_where

from schedsim import Chain, Graph, Op, Schedule, Stage, simulate
from schedsim.figures.gantt import Paint, draw_gantt, draw_pools
from schedsim.plans.links import Link, with_copies


def offloaded():
    """Two stages; the bundle of the first goes to the host at 1-2.5 s and is back at 2.5-4 s."""
    chain = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))
    graph = with_copies(chain, d2h=Link(4), h2d=Link(4), tensors=["r1"])
    return simulate(
        graph, Schedule.from_names(["F0", "d2h:r1", "F1", "loss", "B1", "h2d:r1", "B0"])
    )


def pipeline(num_devices: int, num_batches: int):
    """Forward only, one second each, message without a time between devices."""
    ops = []
    for m in range(num_batches):
        for k in range(num_devices):
            reads = (f"m{k}.{m}",) if k else ()
            stream = f"compute:{k}"
            ops.append(
                Op(f"F{k}.{m}", time_s=1, reads=reads, writes={f"x{k}.{m}": 4}, stream=stream)
            )
            if k + 1 < num_devices:
                there = f"m{k + 1}.{m}"
                send = Op(
                    f"S{k}.{m}",
                    reads=(f"x{k}.{m}",),
                    writes={there: 4},
                    stream=f"link:{k}-{k + 1}",
                    pools={there: f"device:{k + 1}"},
                )
                ops.append(send)
    graph = Graph("pipe", tuple(ops))
    return simulate(graph, Schedule.store_all(graph))


def spans(axes):
    """The row, the start and the end of each bar."""
    found = []
    for bars in axes.collections:
        for path in bars.get_paths():
            box = path.get_extents()
            found.append((round((box.y0 + box.y1) / 2), box.x0, box.x1))
    return sorted(found)


def test_bars_are_the_runs():
    """A row per stream from the top, a bar per run; the loss, without a time, leaves a mark."""
    simulation = offloaded()
    bars = draw_gantt(simulation).axes[0]
    assert [label.get_text() for label in bars.get_yticklabels()] == ["compute", "d2h", "h2d"]
    assert bars.get_ylim()[0] > bars.get_ylim()[1]
    found = spans(bars)
    timed = [bar for bar in found if bar[2] - bar[1] > 0.1]
    expected = [(0, 0, 1), (0, 1, 2), (0, 2, 4), (0, 4, 6), (1, 1, 2.5), (2, 2.5, 4)]
    assert np.allclose(timed, expected)
    assert len(found) == len(timed) + 1
    assert [text.get_text() for text in bars.texts][:4] == ["F0", "F1", "B1", "B0"]
    legend = [text.get_text() for text in bars.get_legend().get_texts()]
    assert legend == ["forward", "loss", "backward", "copy"]


def test_memory_panels_add_up_to_the_pool():
    """The uppermost steps are the bytes of the pool; its peak and its capacity are written."""
    simulation = offloaded()
    for figure in (
        draw_gantt(simulation, capacities={"device": 40}),
        draw_pools(simulation, capacities={"device": 40}),
    ):
        _, device, host = figure.axes
        for axes, pool in ((device, "device"), (host, "host")):
            tops = [patch.get_data().values for patch in axes.patches]
            assert np.max(tops) == simulation.peak_by_pool[pool]
            assert axes.get_ylabel() == f"{pool} [B]"
        texts = [text.get_text() for text in device.texts]
        assert texts == ["peak 32 B", "capacity 40 B"]


def test_a_pipeline_as_people_know_it():
    """One row per device, the number of the micro-batch in each box, at the diagonal it starts."""
    simulation = pipeline(4, 3)
    figure = draw_gantt(
        simulation,
        streams={f"compute:{k}": f"device {k}" for k in range(4)},
        label_of=lambda name: name.split(".")[1],
        memory=False,
    )
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"device {k}" for k in range(4)
    ]
    placed = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert placed == {(k + m + 0.5, k): str(m) for k in range(4) for m in range(3)}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["forward"]
    lines = draw_gantt(simulation).axes[1]
    assert len(lines.get_legend().get_texts()) == 4  # of four pools, a line each


def test_kinds_and_colours_of_your_own():
    """Legend and bars follow them; labels that do not fit are left out."""
    simulation = pipeline(2, 400)
    kinds = ["late" if name.startswith("F1") else "early" for name in simulation.run_names]
    figure = Figure()
    axes = figure.subplots()
    paint = Paint(kinds, {"early": "#0072B2", "late": "#000000"})
    drawn = draw_gantt(simulation, paint=paint, axes=axes)
    assert drawn is figure
    assert len(figure.axes) == 1
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["early", "late"]
    assert not axes.texts
    with pytest.raises(ValueError, match="compute:9"):
        draw_gantt(simulation, streams=["compute:9"])


@pytest.mark.parametrize("seed", slow_where(range(12), lambda seed: seed >= 3))
def test_any_simulation_can_be_drawn(seed):
    """Pools of nothing, steps without a time, ops on every kind of stream."""
    rng = np.random.default_rng(seed)
    graph = random_stream_graph(rng, 6)
    simulation = simulate(graph, random_stream_schedule(rng, graph))
    draw_gantt(simulation).canvas.draw()
    draw_pools(simulation).canvas.draw()
    nothing = Graph("nothing", (Op("f"),))
    draw_gantt(simulate(nothing, Schedule.store_all(nothing))).canvas.draw()


def test_many_runs_lose_no_peak():
    """With 6,000 runs, thin neighbours are one bar, and the highest column is drawn."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 1000, 6000).tolist()
    sizes[4321] = 5000
    ops = tuple(Op(f"f{i}", time_s=1, writes={f"x{i}": size}) for i, size in enumerate(sizes))
    graph = Graph("long", ops)
    simulation = simulate(graph, Schedule.store_all(graph), {})
    bars, device = draw_gantt(simulation).axes
    assert sum(len(c.get_paths()) for c in bars.collections) < 2000
    top = np.max([np.max(patch.get_data().values) for patch in device.patches])
    assert top == pytest.approx(5.0)
