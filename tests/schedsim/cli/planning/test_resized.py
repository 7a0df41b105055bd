"""A command line's workload at other sizes."""

from __future__ import annotations

import pytest

from schedsim.cli.given.workload_source import Source
from schedsim.cli.options.formula import no_options
from schedsim.cli.planning.resized import ResizedWorkload
from schedsim.errors import SchedsimError


def source(*files: str, **options) -> Source:
    return Source(files, no_options(options))


@pytest.mark.parametrize(
    ("options", "field", "step", "work"),
    [
        ({"preset": "gpt2"}, "batch", 1, 5.0),
        ({"preset": "gpt2", "batch": 4}, "seq", 1, 20.0),  # tokens of four samples
        ({"preset": "gpt2", "batch": 4}, "layers", 1, 20.0),
        ({"preset": "gpt2", "tensor_parallel": 4}, "seq", 1, 5.0),
        ({"preset": "gpt2", "tensor_parallel": 4, "sequence_parallel": True}, "seq", 4, 5.0),
        ({"preset": "gpt2", "tensor_parallel": 4, "sequence_parallel": True}, "batch", 1, 5.0),
        ({"synthetic": "uniform", "layers": 3}, "layers", 1, 5.0),
    ],
)
def test_a_formula_at_another_size(options, field, step, work):
    """The option alone changes; ranks that share the sequence take multiples."""
    sizes = ResizedWorkload.of(source(**options), field)
    assert (sizes.step, sizes.work(5)) == (step, work)
    assert sizes.source(8).given == {**options, field: 8}
    assert sizes.base.given == options


@pytest.mark.parametrize(
    ("target", "field", "resized", "work"),
    [
        ("model:gpt2,batch=4,layers=2", "batch", "model:gpt2,layers=2,batch=8", 8.0),
        ("model:gpt2,batch=4", "seq", "model:gpt2,batch=4,seq=8", 32.0),
        ("my.py:build", "layers", "my.py:build,layers=8", 8.0),
        ("model:gpt2,batch=auto", "seq", "model:gpt2,batch=auto,seq=8", 8.0),
        ("model:gpt2,batch=²", "seq", "model:gpt2,batch=²,seq=8", 8.0),
    ],
)
def test_a_model_at_another_size(target, field, resized, work):
    """Its option is replaced, or added; a batch that is no number counts as one sample here."""
    sizes = ResizedWorkload.of(source(target, device="cpu"), field)
    found = sizes.source(8)
    assert found.files == (resized,)
    assert found.options["device"] == "cpu"
    assert sizes.work(8) == work


def test_a_file_has_one_size():
    """Refused with what can change."""
    with pytest.raises(SchedsimError, match="--maximize batch needs a workload") as caught:
        ResizedWorkload.of(source("chain.json"), "batch")
    assert "--preset" in caught.value.hint
