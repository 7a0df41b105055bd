"""Blocks that compiled code hands on: hand-made cases, and peaks of PyTorch's allocator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedsim.allocators import Requests
from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.compiled_buffers import hand_over
from schedsim.clusters.rank_memory import rank_memory
from schedsim.clusters.tape import RankOp

FABRIC = get_fabric("h100-96gb")


def requests(*runs: tuple[tuple[str, ...], tuple[str, ...]], sizes: dict[str, int]) -> Requests:
    """Each run asks for the tensors of its first list, and frees those of its second."""
    number = {name: k for k, name in enumerate(sizes)}
    pairs = [
        pair
        for run, (asked, freed) in enumerate(runs)
        for pair in (
            *((number[one], 2 * run) for one in asked),
            *((~number[one], 2 * run + 1) for one in freed),
        )
    ]
    return Requests(
        np.array([item for item, _ in pairs], dtype=np.int64),
        np.array([event for _, event in pairs], dtype=np.int64),
        np.array(list(sizes.values()), dtype=np.int64),
        np.zeros(len(sizes), dtype=np.int64),
        tuple(sizes),
        2 * len(runs),
    )


def op(kind: str = "product", element_bytes: int = 2) -> RankOp:
    return RankOp("op", (), {}, kind=kind, element_bytes=element_bytes)


def names(found: Requests) -> list[str]:
    """Requests and, with a minus, releases by name."""
    return [
        f"-{found.item_names[~item]}" if item < 0 else found.item_names[item]
        for item in found.items.tolist()
    ]


SIZES = {"A a": 8, "A b": 8, "A c": 8}
THREE = ((("A a",), ()), (("A b",), ("A a",)), (("A c",), ("A b", "A c")))


def test_a_block_goes_to_the_next_tensor_of_its_size() -> None:
    found = hand_over(requests(*THREE, sizes=SIZES), [(0, 3)], [op()] * 3)
    assert names(found) == ["A a", "A b", "-A b", "-A a"]


def test_another_size_or_format_gets_a_block_of_its_own() -> None:
    plain = requests(*THREE, sizes=SIZES | {"A c": 16})
    assert names(hand_over(plain, [(0, 3)], [op()] * 3)) == names(plain)
    plain = requests(*THREE, sizes=SIZES)
    found = hand_over(plain, [(0, 3)], [op(), op(), op(element_bytes=4)])
    assert names(found) == names(plain)


@pytest.mark.parametrize("kind", ["attention", "complex", "gather"])
def test_a_library_asks_for_its_outputs_itself(kind: str) -> None:
    plain = requests(*THREE, sizes=SIZES)
    assert names(hand_over(plain, [(0, 3)], [op(), op(), op(kind)])) == names(plain)


def test_what_came_from_outside_is_not_handed_on() -> None:
    plain = requests(*THREE, sizes=SIZES)
    assert names(hand_over(plain, [(1, 3)], [op()] * 3)) == names(plain)
    assert names(hand_over(plain, [(0, 2), (2, 3)], [op()] * 3)) == names(plain)


def test_the_block_that_was_left_last_is_taken_first() -> None:
    sizes = dict.fromkeys(("A a", "A b", "A c", "A d"), 8)
    runs = ((("A a", "A b"), ()), ((), ("A a",)), ((), ("A b",)), (("A c",), ()), (("A d",), ()))
    found = hand_over(requests(*runs, sizes=sizes), [(0, 5)], [op()] * 5)
    assert names(found) == ["A a", "A b"]
    plain = requests(*runs, ((), ("A c",)), sizes=sizes)
    assert names(hand_over(plain, [(0, 6)], [op()] * 6)) == ["A a", "A b", "-A b"]


def test_a_pointwise_kernel_writes_over_its_last_input() -> None:
    runs = ((("A a",), ()), (("A b",), ("A a",)), ((), ("A b",)))
    plain = requests(*runs, sizes=dict.fromkeys(("A a", "A b"), 8))
    found = hand_over(plain, [(0, 3)], [op(), op("pointwise"), op()])
    assert names(found) == ["A a", "-A a"]
    assert names(hand_over(plain, [(0, 3)], [op()] * 3)) == names(plain)


def test_a_block_does_not_wait_where_the_peak_would_rise() -> None:
    sizes = {"A a": 8, "A wide": 100, "A b": 8}
    runs = (
        (("A a",), ()),
        ((), ("A a",)),
        (("A wide",), ()),
        ((), ("A wide",)),
        (("A b",), ()),
        ((), ("A b",)),
    )
    plain, ops = requests(*runs, sizes=sizes), [op()] * 6
    assert names(hand_over(plain, [(0, 6)], ops)) == names(plain)
    found = hand_over(plain, [(0, 6)], ops, always=True)
    assert names(found) == ["A a", "A wide", "-A wide", "-A a"]
    lower = requests(*runs, sizes=sizes | {"A wide": 4})
    assert names(hand_over(lower, [(0, 6)], ops)) == names(lower)
    early = requests(*runs[:2], *runs[4:], sizes=sizes)
    assert names(hand_over(early, [(0, 4)], ops)) == ["A a", "-A a"]


def test_gradients_of_weights_stay_where_they_are() -> None:
    runs = ((("G a",), ()), ((), ("G a",)), (("A b",), ()))
    plain = requests(*runs, sizes={"G a": 8, "A b": 8})
    assert names(hand_over(plain, [(0, 3)], [op()] * 3)) == names(plain)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_item_is_asked_for_once_and_no_tensor_shares_its_bytes(data: st.DataObject) -> None:
    """Beside the plain requests: a tensor lives in one block, which no other tensor has then."""
    count = data.draw(st.integers(1, 12))
    sizes = {f"A {k}": data.draw(st.sampled_from([4, 8])) for k in range(count)}
    frees: list[list[str]] = [[] for _ in range(count)]
    for k in range(count):
        frees[data.draw(st.integers(k, count - 1))].append(f"A {k}")
    plain = requests(*(((f"A {k}",), tuple(frees[k])) for k in range(count)), sizes=sizes)
    kinds = [data.draw(st.sampled_from(["product", "pointwise", "complex"])) for _ in range(count)]
    cut = data.draw(st.integers(0, count))
    found = hand_over(plain, [(0, cut), (cut, count)], [op(kind) for kind in kinds])
    alive: set[int] = set()
    for item in found.items.tolist():
        if item >= 0:
            assert item not in alive
            alive.add(item)
        else:
            alive.remove(~item)
    assert not alive
    assert found.items.size <= plain.items.size
    for event in range(plain.num_events):
        held = [sum_of(one, event) for one in (plain, found)]
        # An input that is overwritten is not counted beside its output.
        over = event % 2 == 0 and kinds[event // 2] == "pointwise"
        assert held[1] >= held[0] - (8 if over else 0)


def sum_of(one: Requests, event: int) -> int:
    """Bytes that are held after an event."""
    items = one.items[one.events <= event]
    sizes = one.item_bytes[np.where(items < 0, ~items, items)]
    return int(np.where(items < 0, -sizes, sizes).sum())


# By `benchmarks/calibration_step.py` on the dry CUDA device, torch 2.15: four layers, FSDP over 8.
RECORDED = [
    (
        "llama2-7b",
        {"seq": 2048, "batch": 16, "wide_logits": True, "held_logits": True},
        31207718912,
    ),
    ("llama3-8b", {"seq": 8192, "batch": 2, "float8": True}, 41502638080),
]


@pytest.mark.parametrize(("model", "options", "reserved_bytes"), RECORDED)
def test_compiled_layers_reserve_what_pytorch_does(
    model: str, options: dict, reserved_bytes: int
) -> None:
    four = replace(get_architecture(model), num_layers=4)
    training = Training(**{"recompute": "selective", "compiled": True} | options)
    found = rank_memory(four, Degrees(fsdp=8), training, FABRIC)
    assert found.reserved_bytes == pytest.approx(reserved_bytes, rel=0.006)
