"""Arguments of Megatron-LM: read as its own parser would."""

from __future__ import annotations

from small_exports import loose, tight


def test_whole_layers():
    """The least memory is one uniform piece of all four; a loose plan leaves the arguments out."""
    words = tight("megatron").text.split()
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": "4",
    }
    for of_ops in (False, True):
        exported = loose("megatron", of_ops)
        assert exported.text.startswith("# nothing to recompute")
        assert exported.exact
