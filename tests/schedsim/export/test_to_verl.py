"""verl: all layers or none."""

import yaml
from small_exports import CHAIN, loose, tight

import schedsim
from schedsim.api import try_plan
from schedsim.export import export


def test_two_switches():
    """The switches are fields of the model in the actor's configuration."""
    for make, checkpointed in ((tight, True), (loose, False)):
        model = yaml.safe_load(make("verl").text)["actor_rollout_ref"]["model"]
        assert model == {
            "enable_gradient_checkpointing": checkpointed,
            "enable_activation_offload": False,
        }


def test_its_copies_leave_two_layers_on_the_device():
    """Inputs of the first layers are copied, and those of the last two are not."""
    least = try_plan(CHAIN, 1, link="pcie5", effort=0.1).min_feasible_bytes
    plan = schedsim.plan(CHAIN, least, link="pcie5", effort=0.1)
    exported = export(CHAIN, plan, "verl")
    model = yaml.safe_load(exported.text)["actor_rollout_ref"]["model"]
    assert all(model.values())
    copied = [name for name in exported.schedule.names if name.startswith("d2h:")]
    assert copied == ["d2h:a1", "d2h:a2"]
