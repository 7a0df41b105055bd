"""Libraries are told that nothing is traced, while it is, and that alone."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.eager_paths import (
    EagerAnswers,
    eager_paths,
    eager_paths_in_parts,
)


@pytest.fixture
def modules(monkeypatch):
    """A module of transformers that asks, one with another thing of that name, and a stranger."""
    found = {}
    for name in ("transformers.asks", "transformers.holds", "elsewhere.asks"):
        found[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, found[name])
    monkeypatch.setitem(sys.modules, "transformers.gone", None)
    found["transformers.asks"].is_tracing = lambda *given: ("really", given)
    found["transformers.holds"].is_fake_tensor = "no function"
    found["elsewhere.asks"].is_tracing = lambda: "really"
    return found


def test_transformers_is_told_no_and_gets_its_own_back(modules):
    """With whatever arguments; also where the block fails."""
    asks, holds, other = modules.values()
    own = asks.is_tracing
    with contextlib.suppress(KeyError), eager_paths():
        assert asks.is_tracing(1, tensor=2) is False
        assert holds.is_fake_tensor == "no function"
        assert other.is_tracing() == "really"
        raise KeyError
    assert asks.is_tracing is own
    assert asks.is_tracing(3) == ("really", (3,))


def test_dynamo_is_answered_where_masks_experts_and_outputs_are_chosen(monkeypatch):
    """Only there: elsewhere, an answer that depends on values would break graphs for nothing."""
    asked = {
        "transformers.masking_utils": "is_tracing",
        "transformers.integrations.moe": "is_torchdynamo_compiling",
        "transformers.elsewhere": "is_tracing",
        "transformers.utils.output_capturing": "is_torchdynamo_compiling",
    }
    modules = []
    for name, question in asked.items():
        modules.append(ModuleType(name))
        setattr(modules[-1], question, lambda *given: "really")
        monkeypatch.setitem(sys.modules, name, modules[-1])
    monkeypatch.setitem(sys.modules, "transformers.modeling_attn_mask_utils", None)
    masks, experts, other, collector = modules
    with eager_paths_in_parts():
        assert masks.is_tracing(1) is False
        assert experts.is_torchdynamo_compiling() is False
        assert other.is_tracing() == "really"
        assert collector.is_torchdynamo_compiling() is True  # also between two graphs
    assert masks.is_tracing(1) == experts.is_torchdynamo_compiling() == "really"
    assert collector.is_torchdynamo_compiling() == "really"


def test_a_backend_answers_experts_alone_and_notes_who_takes_another_path():
    answers = EagerAnswers()
    assert answers("transformers.integrations.moe") is False
    assert answers("transformers.models.bert.modeling_bert") is None
    assert answers.others == []
    assert answers("transformers.models.jamba.modeling_jamba") is None
    [line] = answers.others
    assert line.startswith("transformers.models.jamba.modeling_jamba runs a parallel scan")


def test_masks_are_noted_apart():
    """What they are told of depends on the attention that reads them."""
    answers = EagerAnswers()
    assert answers("transformers.masking_utils") is None
    assert answers.others == []
    [line] = answers.masks
    assert line.startswith("transformers.masking_utils builds a mask")
