"""Variants of op records: what is encoded, where it stands, and how many bytes it takes."""

from __future__ import annotations

import pytest

from schedsim.workloads.ops import OpRecord, StageRecord
from schedsim.workloads.record_variants import (
    DECODE_FLOPS,
    ENCODE_FLOPS,
    RecordVariant,
    apply_variant,
    encoded,
    encoded_bytes,
    encodings,
    exact_or_approximate,
    stage_variants,
)

ALL = ("quantize", "precision", "approx", "share")
STAGE = StageRecord(
    "mlp",
    (
        OpRecord("norm", ("in",), {"n": 1024}),
        OpRecord("up", ("n",), {"u": 4096}),
        OpRecord("gelu", ("u",), {"g": 4096}),
        OpRecord("down", ("g",), {"out": 1024, "mask": 512}, optional=("mask",)),
    ),
    (
        OpRecord("down'", ("d.out", "g", "mask"), {"d.g": 4096}),
        OpRecord("gelu'", ("d.g", "u"), {"d.u": 4096}),
        OpRecord("up'", ("d.u", "n"), {"d.n": 1024}),
        OpRecord("norm'", ("d.n", "in"), {"d.in": 1024}),
    ),
)


@pytest.mark.parametrize(
    ("size", "element", "kind", "bits", "expected"),
    [
        (512, 2, "quantize", 8, 256 + 4),  # one group of 256 elements: 4 bytes of scale and zero
        (514, 2, "quantize", 8, 257 + 8),  # one more element begins another
        (512, 2, "quantize", 4, 128 + 4),
        (6, 2, "quantize", 4, 2 + 4),  # 3 elements of 4 bits: 12 bits are 2 bytes
        (512, 2, "precision", 8, 256),
        (512, 4, "precision", 16, 256),
        (0, 2, "quantize", 8, 0),
    ],
)
def test_encoded_bytes_by_hand(size, element, kind, bits, expected):
    """Bits rounded up to bytes; groups only where integers need a scale."""
    assert encoded_bytes(size, element, kind, bits) == expected


@pytest.mark.parametrize(
    ("dtype", "allow", "expected"),
    [
        ("fp16", ALL, [("int8", "quantize", 8), ("int4", "quantize", 4), ("fp8", "precision", 8)]),
        ("bf16", ["precision"], [("fp8", "precision", 8)]),
        ("fp32", ["precision"], [("bf16", "precision", 16)]),
        ("fp16", ["approx"], []),
    ],
)
def test_encodings_that_are_allowed(dtype, allow, expected):
    """A lower precision is that below the one at hand."""
    assert list(encodings(allow, dtype)) == expected


def test_the_two_bits_of_a_gelu_and_the_shared_input_of_a_norm():
    """2048 elements of 2 bytes: 512 bytes of bits; the norm's backward reads its output instead."""
    approx, share = exact_or_approximate(STAGE, ALL, "fp16")[::-1]
    assert (approx.kind, dict(approx.instead)) == ("approx", {"gelu'": {"u": "u.bits"}})
    assert dict(approx.writes) == {"gelu": {"u.bits": 512}}
    assert (share.kind, dict(share.writes)) == ("share", {})
    changed = apply_variant(STAGE, approx)
    assert changed.forward[2].writes == {"g": 4096, "u.bits": 512}
    assert changed.forward[2].optional == ("u.bits",)
    assert changed.backward[1].reads == ("d.g", "u.bits")
    assert changed.forward[:2] == STAGE.forward[:2]
    assert exact_or_approximate(STAGE, ["quantize"], "fp16") == []


def test_what_has_no_backward_has_no_variant():
    """And a norm alone shares what it hands on."""
    alone = StageRecord("s", STAGE.forward[2:3], ())
    assert exact_or_approximate(alone, ALL, "fp16") == []
    single = StageRecord(
        "s",
        (OpRecord("norm", ("in",), {"n": 8}),),
        (OpRecord("norm'", ("d.n", "in"), {"d.in": 8}),),
    )
    (share,) = exact_or_approximate(single, ALL, "fp16")
    assert dict(share.instead) == {"norm'": {"in": "n"}}
    assert apply_variant(single, share).backward[0].reads == ("d.n", "n")


def test_all_that_is_kept_inside_is_encoded():
    """n, u and g, not the mask, not the output; decoders stand before their first reader."""
    variant = encoded(STAGE, "int8", "quantize", 8, "fp16")
    assert [op.name for op in variant.forward] == ["int8 n", "int8 u", "int8 g"]
    assert variant.forward[0].writes == {"n.int8": 512 + 2 * 4}
    assert variant.forward[0].flops == ENCODE_FLOPS * 512
    assert variant.backward[1].flops == DECODE_FLOPS * 2048
    changed = apply_variant(STAGE, variant)
    assert [op.name for op in changed.forward] == [
        *("norm", "int8 n", "up", "int8 u", "gelu", "int8 g", "down")
    ]
    assert [op.name for op in changed.backward] == [
        *("int8' g", "down'", "int8' u", "gelu'", "int8' n", "up'", "norm'")
    ]
    assert changed.backward[1].reads == ("d.out", "g.again", "mask")
    # What is kept for the backward is small; what is decoded is as large as it was.
    assert changed.backward[0].writes == {"g.again": 4096}


def test_two_reads_that_become_one_tensor_are_one_read():
    """A backward that reads both a tensor and what replaces the other."""
    stage = StageRecord(
        "s",
        (OpRecord("f", ("in",), {"x": 4, "y": 4}),),
        (OpRecord("f'", ("x", "y", "d.out"), {"d.in": 4}),),
    )
    variant = RecordVariant("v", "share", instead={"f'": {"x": "y"}})
    assert apply_variant(stage, variant).backward[0].reads == ("y", "d.out")


def test_every_combination_is_offered_once():
    """Alone or together with the one of the encodings: kinds are joined, each once."""
    found = {name: kind for name, kind, _ in stage_variants(STAGE, ALL, "fp16")}
    assert set(found) == {
        *("int8", "int4", "fp8"),
        *("ms-norm", "ms-norm+int8", "ms-norm+int4", "ms-norm+fp8"),
        *("regelu2", "regelu2+int8", "regelu2+int4", "regelu2+fp8"),
        *("ms-norm+regelu2", "ms-norm+regelu2+int8", "ms-norm+regelu2+int4"),
        "ms-norm+regelu2+fp8",
    }
    assert found["regelu2+int4"] == "approx+quantize"
    assert [name for name, _, _ in stage_variants(STAGE, ["approx"], "fp16")] == ["regelu2"]
    assert list(stage_variants(STAGE, [], "fp16")) == []
