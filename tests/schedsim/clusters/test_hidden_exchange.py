"""Exchanges of tokens beside the computation of another micro-batch."""

from dataclasses import replace

import pytest
from cluster_layers import FABRIC, layer

import schedsim
from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.hidden_exchange import with_hidden_exchange
from schedsim.clusters.step_bounds import StepBounds
from schedsim.clusters.tape import RankOp
from schedsim.errors import SchedsimError

OF_132 = replace(FABRIC, processors=132)
STEP = {"seq": 4096, "state": "megatron", "compiled": True, "dispatcher": "alltoall"}


def _op(name, seconds, stream="compute"):
    return RankOp(name, (), {}, link_s=seconds, stream=stream)


def test_what_the_computation_beside_it_does_not_hide_is_waited_for():
    """Attention of 1 s, experts of 2 s, backward 4 s and 3 s; exchanges of 2.5 s."""
    forward = [
        *(_op("mixed", 1.0), _op("arrived", 2.5, "expert"), _op("e.gate", 2.0)),
        _op("returned", 2.5, "expert"),
    ]
    backward = [
        *(_op("returned'", 2.5, "expert"), _op("e.gate'", 4.0), _op("arrived'", 2.5, "expert")),
        _op("mixed'", 3.0),
    ]
    made = with_hidden_exchange(forward, backward, OF_132, 33)
    found = {op.name: op.link_s for ops in made for op in ops}
    # A quarter of what is sent beside computation is lost, unless the exchange is waited for.
    added = {"arrived": 0.625, "returned": 0.625, "returned'": 1.5, "arrived'": 0.625}
    assert {name: found[name] for name in added} == pytest.approx(added)
    assert found["e.gate"] == 2.0


def test_products_of_hopper_run_in_two_waves_beside_an_exchange():
    """One that begins beside it takes twice as long, until tokens are there."""
    product = replace(_op("e.gate'", 4.0), kind="product")
    forward = [_op("mixed", 1.0), _op("arrived", 2.5, "expert")]
    backward = [product, _op("arrived'", 0.0, "expert"), _op("mixed'", 3.0)]
    for persistent, added_s in ((True, 2.5), (False, 0.625)):
        fabric = replace(OF_132, persistent=persistent)
        made, _ = with_hidden_exchange(forward, backward, fabric, 33)
        assert made[1].link_s == pytest.approx(added_s)


def test_an_exchange_takes_a_share_of_the_device_s_own_processors():
    """An A100 has 108, of which 27 are a quarter; they were taken for a fifth of an H100's."""
    forward = [_op("mixed", 4.0), _op("arrived", 2.0, "expert"), _op("e.gate", 2.0)]
    backward = [_op("e.gate'", 4.0), _op("arrived'", 2.0, "expert"), _op("mixed'", 4.0)]
    made, _ = with_hidden_exchange(forward, backward, get_fabric("a100-80gb"), 27)
    assert made[1].link_s == pytest.approx(2.0 * 27 / 108)


def test_a_layer_without_experts_is_as_it_was():
    """Nor is one whose experts lie on one rank."""
    for model, degrees in (("llama3-8b", Degrees()), ("mixtral-8x7b", Degrees())):
        made, _ = layer(model, 4096, degrees, seq=4096)
        assert with_hidden_exchange(made.forward, made.backward, FABRIC, 20) == (
            made.forward,
            made.backward,
        )


def test_a_step_of_several_micro_batches_hides_exchanges():
    """One of a single micro-batch has nothing beside them."""
    degrees = {"fsdp": 16, "expert": 16}
    for count, faster in ((1, False), (4, True)):
        batch = {"batch": count, "num_micro_batches": count}
        plain, hidden = (
            schedsim.cluster("qwen3-30b-a3b", hidden_exchange=one, **degrees, **batch, **STEP)
            for one in (False, True)
        )
        assert (hidden.step_s < 0.8 * plain.step_s) == faster
        assert (hidden.step_s == plain.step_s) == (not faster)


def test_the_bound_of_a_pipeline_is_its_time():
    """With hidden exchanges, and with sums of gradients of FSDP2, as without."""
    for state in ("megatron", "fsdp2"):
        step = schedsim.cluster(
            "qwen3-30b-a3b",
            **{**STEP, "state": state},
            fsdp=8,
            expert=8,
            pipeline=2,
            batch=4,
            num_micro_batches=4,
            schedule="interleaved",
            num_chunks=2,
            hidden_exchange=True,
        )
        bound = StepBounds(step.model, step.fabric).time_s(step.degrees, step.training)
        assert bound == pytest.approx(step.step_s)


@pytest.mark.parametrize(
    ("model", "degrees", "settings", "says"),
    [
        ("llama3-8b", {}, {"hidden_exchange": True}, "--hidden-exchange changes nothing"),
        ("llama3-8b", {}, {"dispatcher": "deepep"}, "--dispatcher changes nothing"),
        ("mixtral-8x7b", {}, {"dispatcher": "post"}, "--dispatcher 'post' is unknown"),
        (
            "mixtral-8x7b",
            {"pipeline": 2},
            {"hidden_exchange": True, "batch": 2},
            "needs --schedule interleaved",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(model, degrees, settings, says):
    """The message names the option."""
    with pytest.raises(SchedsimError, match=says):
        Training(**settings).check(get_architecture(model), Degrees(**degrees))
