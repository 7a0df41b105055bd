"""What each layer keeps, chosen within a budget."""

from dataclasses import replace
from itertools import product

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.kept_names import keeping
from schedsim.clusters.prediction import predict
from schedsim.clusters.rank_memory import rank_memory
from schedsim.clusters.rank_time import step_time
from schedsim.clusters.recompute_choice import kept_pieces, least_recomputation

FABRIC = get_fabric("h100-80gb")


def small(num_layers=4, name="llama3-8b"):
    """A model of few layers."""
    return replace(get_architecture(name), num_layers=num_layers)


def reserved(model, degrees, training, recompute):
    """Bytes of the fullest rank."""
    settings = replace(training, recompute=recompute)
    return predict(model, degrees, settings, FABRIC).reserved_bytes


def test_what_fits_recomputes_nothing_and_what_never_fits_everything():
    """The two ends."""
    model, degrees, training = small(), Degrees(fsdp=8), Training(seq=2048)
    assert least_recomputation(model, degrees, training, FABRIC, 10**12).recompute == "none"
    assert least_recomputation(model, degrees, training, FABRIC, 10**6).recompute == "full"


def test_attention_comes_first_and_small_products_last():
    """By seconds for a byte; products are alike in it, the larger goes first."""
    pieces = kept_pieces(small(), Degrees(fsdp=8), Training(), FABRIC, experts=False)
    names = [piece.name for piece in pieces]
    assert names[0] == "mixed"
    assert set(names[1:3]) == {"gate", "up"}
    assert set(names[-2:]) == {"k", "v"}
    assert "down" not in names  # nobody reads it again
    assert [piece.size_bytes for piece in pieces if piece.name == "gate"] == [2 * 8192 * 14336]


@pytest.mark.slow
def test_it_is_never_slower_than_the_policies_at_their_own_memory():
    """torchtitan's selective policy and the checkpoint of every layer."""
    model, degrees, training = small(), Degrees(fsdp=8), Training(batch=2, seq=4096)
    for policy in ("selective", "full"):
        own = replace(training, recompute=policy)
        budget = reserved(model, degrees, training, policy)
        chosen = least_recomputation(model, degrees, training, FABRIC, budget)
        assert reserved(model, degrees, training, chosen.recompute) <= budget
        ours_s = step_time(model, degrees, chosen, FABRIC).step_s
        assert ours_s <= step_time(model, degrees, own, FABRIC).step_s
        if policy == "selective":
            assert ours_s < 0.99 * step_time(model, degrees, own, FABRIC).step_s


@pytest.mark.slow
def test_it_is_near_the_best_of_all_choices():
    """Every set of the three best pieces in each of two layers."""
    model, degrees, training = small(2), Degrees(fsdp=8), Training(batch=4, seq=4096)
    names = [p.name for p in kept_pieces(model, degrees, training, FABRIC, experts=False)]
    low, high = (reserved(model, degrees, training, one) for one in ("full", "none"))
    budget = (low + high) // 2
    best_s = float("inf")
    kinds = [
        keeping(name for name, on in zip(names, bits, strict=False) if on)
        for bits in product((0, 1), repeat=3)
    ]
    for one, other in product([*kinds, "none"], repeat=2):
        recompute = f"{one}:1,{other}:1"
        settings = replace(training, recompute=recompute)
        if rank_memory(model, degrees, settings, FABRIC).reserved_bytes <= budget:
            best_s = min(best_s, step_time(model, degrees, settings, FABRIC).step_s)
    chosen = least_recomputation(model, degrees, training, FABRIC, budget)
    assert rank_memory(model, degrees, chosen, FABRIC).reserved_bytes <= budget
    assert step_time(model, degrees, chosen, FABRIC).step_s <= 1.01 * best_s


@pytest.mark.slow
def test_each_pipeline_rank_chooses_for_itself():
    """The first holds the most micro-batches, and recomputes the most."""
    model, degrees = replace(small(8), vocab=4096), Degrees(fsdp=2, pipeline=4)
    training = Training(batch=8, num_micro_batches=8, seq=4096)
    budget = (reserved(model, degrees, training, "none")) * 3 // 4
    chosen = least_recomputation(model, degrees, training, FABRIC, budget)
    assert "/" in chosen.recompute
    assert predict(model, degrees, chosen, FABRIC).reserved_bytes <= budget


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "mixtral-8x7b"])
def test_experts_have_pieces_of_their_own(name):
    """Products of routed experts are among them."""
    pieces = kept_pieces(get_architecture(name), Degrees(fsdp=8), Training(), FABRIC, experts=True)
    assert {"e.gate", "mixed", "o"} <= {piece.name for piece in pieces}
