"""NeMo's Megatron Bridge: what Megatron's arguments say, by the names of its fields."""

import pytest
import yaml
from small_exports import OPS, loose, tight

import schedsim
from schedsim.api import try_plan
from schedsim.export import export
from schedsim.export.to_megatron import OFFLOADED


def arguments(text):
    """Megatron's command line as fields."""
    found = {}
    for line in text.splitlines():
        if line.startswith("--"):
            flag, *words = line[2:].split()
            found[flag.replace("-", "_")] = words
    return found


def test_it_says_what_megatrons_arguments_say():
    """Whole layers, or nothing."""
    model = yaml.safe_load(tight("nemo").text)["model"]
    words = {name: [str(value)] for name, value in model.items()}
    assert words == arguments(tight("megatron").text)
    assert yaml.safe_load(loose("nemo").text) == {"model": {"recompute_granularity": None}}


@pytest.mark.slow
def test_modules_and_what_is_on_the_host():
    """The same sets as Megatron's, over a link."""
    least = try_plan(OPS, 1, link="100GB/s", effort=0.1).min_feasible_bytes
    for share in (1, 1.2):
        plan = schedsim.plan(OPS, int(share * least), link="100GB/s", effort=0.1)
        model = yaml.safe_load(export(OPS, plan, "nemo").text)["model"]
        flags = arguments(export(OPS, plan, "megatron").text)
        assert model.get("recompute_modules", []) == flags.get("recompute_modules", [])
        assert model.get("offload_modules", []) == flags.get("offload_modules", [])
        assert set(model.get("offload_modules", [])) <= set(OFFLOADED)
        assert bool(model.get("offload_modules")) == model.get(
            "fine_grained_activation_offloading", False
        )
