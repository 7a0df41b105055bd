"""Blocks that outlive their step are told from activations, and no plan is said to save them."""

from __future__ import annotations

import pytest
from snapshot_files import FORWARD, MIB, block, document, event, written

from schedsim.snapshots import examine, peak_of, read_snapshot
from schedsim.snapshots.left_over import left_over_addresses

HIDDEN = [{"filename": "/me/net.py", "line": 5, "name": "forward"}]
OUTPUT_BYTES, HIDDEN_BYTES, GRADIENT_BYTES = 1000, 5000, 300


def loop(num_steps, *, kept, freed_at_end=False):
    """Steps of a hidden activation, an output and a gradient; `kept` outputs stay held."""
    events, held = [], []
    for i in range(num_steps):
        output, hidden, gradient = i * 1024, 512 * 1024, 600 * 1024
        events += [
            event("alloc", hidden, HIDDEN_BYTES, HIDDEN),
            event("alloc", output, OUTPUT_BYTES, FORWARD),
            event("alloc", gradient, GRADIENT_BYTES),  # autograd's thread has no Python stack
            event("free_completed", hidden, HIDDEN_BYTES),
            event("free_completed", gradient, GRADIENT_BYTES),
        ]
        if i < kept:
            held.append(output)
        else:
            events.append(event("free_completed", output, OUTPUT_BYTES))
    if freed_at_end:
        events += [event("free_completed", output, OUTPUT_BYTES) for output in held]
        held = []
    blocks = [block(output, OUTPUT_BYTES, True, FORWARD) for output in held]
    return document([(0, 2 * MIB, blocks)], events)


@pytest.mark.parametrize(("num_steps", "kept"), [(4, 0), (4, 2), (6, 5), (5, 5)])
def test_outputs_in_a_list_are_no_activations_that_a_plan_saves(tmp_path, num_steps, kept):
    """By hand: at the peak, in the last forward that follows, earlier outputs are left over."""
    findings = examine(read_snapshot(written(tmp_path, loop(num_steps, kept=kept))), [""])
    earlier = min(kept, num_steps - 1)
    assert findings.by_role["left from earlier steps"] == earlier * OUTPUT_BYTES
    assert findings.by_role["activation"] == HIDDEN_BYTES + OUTPUT_BYTES
    assert findings.savable_bytes == OUTPUT_BYTES  # all but the largest: the present output
    assert sum(findings.by_role.values()) == findings.peak.requested_bytes


def test_what_is_freed_later_may_be_of_a_pipeline(tmp_path):
    """A micro-batch in flight meets other backward passes, and is freed by its own."""
    snapshot = read_snapshot(written(tmp_path, loop(5, kept=4, freed_at_end=True)))
    assert left_over_addresses(snapshot, peak_of(snapshot)) == frozenset()


CLEARED = [{"filename": "/me/train.py", "line": 30, "name": "report"}]


@pytest.mark.parametrize(("released", "found"), [(CLEARED, 4), ((), 0)])
def test_a_list_that_is_cleared_later_was_left_over_before(tmp_path, released, found):
    """If what clears it is no backward pass; autograd's thread has no Python stack."""
    whole = loop(5, kept=4, freed_at_end=True)
    for one in whole["device_traces"][0][-4:]:
        one["frames"] = list(released)
    snapshot = read_snapshot(written(tmp_path, whole))
    findings = examine(snapshot, [""])
    assert len(left_over_addresses(snapshot, peak_of(snapshot))) == found
    assert findings.by_role.get("left from earlier steps", 0) == found * OUTPUT_BYTES


def test_an_output_in_flight_is_released_by_the_pipeline_itself(tmp_path):
    """Its forward's activations wait for their backward while another micro-batch's runs."""
    events = []
    for i in range(2):  # two forward passes, each after a backward of an earlier micro-batch
        events += [
            event("alloc", 600 * 1024 + i * 1024, GRADIENT_BYTES),
            event("free_completed", 600 * 1024 + i * 1024, GRADIENT_BYTES),
            event("alloc", i * 8192, HIDDEN_BYTES, HIDDEN),
            event("alloc", 65536 + i * 1024, OUTPUT_BYTES, FORWARD),
        ]
    for i in range(2):
        events += [
            event("free_completed", i * 8192, HIDDEN_BYTES),
            event("free_completed", 65536 + i * 1024, OUTPUT_BYTES, CLEARED),
        ]
    snapshot = read_snapshot(written(tmp_path, document([(0, 2 * MIB, [])], events)))
    assert left_over_addresses(snapshot, peak_of(snapshot)) == frozenset()


def test_layers_of_one_forward_share_a_stack(tmp_path):
    """Without a backward between them, as when memory runs out in the first step."""
    events = [event("alloc", i * 8192, HIDDEN_BYTES, HIDDEN) for i in range(4)]
    blocks = [block(i * 8192, HIDDEN_BYTES, True, HIDDEN) for i in range(4)]
    snapshot = read_snapshot(written(tmp_path, document([(0, 2 * MIB, blocks)], events)))
    assert left_over_addresses(snapshot, peak_of(snapshot)) == frozenset()


def test_an_activation_of_other_code_outlives_no_step(tmp_path):
    """A generator's activations wait while a discriminator runs backward and forward again."""
    events = [
        event("alloc", 0, HIDDEN_BYTES, HIDDEN),
        event("alloc", 8192, OUTPUT_BYTES, FORWARD),
        event("alloc", 16384, GRADIENT_BYTES),
        event("free_completed", 8192, OUTPUT_BYTES),
        event("alloc", 8192, OUTPUT_BYTES, FORWARD),
    ]
    blocks = [
        block(0, HIDDEN_BYTES, True, HIDDEN),
        block(8192, OUTPUT_BYTES, True, FORWARD),
        block(16384, GRADIENT_BYTES, True),
    ]
    snapshot = read_snapshot(written(tmp_path, document([(0, 2 * MIB, blocks)], events)))
    assert left_over_addresses(snapshot, peak_of(snapshot)) == frozenset()
