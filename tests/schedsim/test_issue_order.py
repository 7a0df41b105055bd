"""What the order of a schedule decides: readers, writers, and the runs issued before copies."""

from __future__ import annotations

from schedsim import Chain, Schedule, Stage
from schedsim.plans.links import Link, with_copies
from schedsim.simulation.issue_order import issue_order


def test_reads_go_to_the_newest_instance_and_copies_follow_computation():
    """F0 and F1 run, a0 goes to the host and comes back, and B1 reads what F0 wrote."""
    chain = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))
    graph = with_copies(chain, d2h=Link(4), h2d=Link(4))
    names = ["F0", "d2h:a1", "F1", "loss", "h2d:a1", "F0", "B1", "F0", "B0"]
    order = issue_order(graph, Schedule.from_names(names).bind(graph).copy())

    def read_from(run):
        mine = slice(order.input_start[run], order.input_start[run + 1])
        return [names[w] if w >= 0 else "input" for w in order.writer[order.input_instance[mine]]]

    def issued_before(run):
        mine = slice(order.issued_start[run], order.issued_start[run + 1])
        return order.issued_run[mine].tolist()

    assert read_from(0) == ["input"]
    assert read_from(1) == ["F0"]
    assert read_from(4) == ["d2h:a1"]
    assert [issued_before(run) for run in (0, 1, 4)] == [[], [0], [3]]
    streams = [
        [names[run] for run in order.line[order.line_start[q] : order.line_start[q + 1]]]
        for q in range(order.line_start.size - 1)
    ]
    assert streams == [["F0", "F1", "loss", "F0", "B1", "F0", "B0"], ["d2h:a1"], ["h2d:a1"]]
