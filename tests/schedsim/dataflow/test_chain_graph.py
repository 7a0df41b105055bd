"""The short way from a chain to its graph and arrays gives what the checked way gives."""

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from schedsim import Chain, Graph, Stage
from schedsim.dataflow.arrays import build_arrays
from schedsim.dataflow.chain_graph import lowered

SIZES = st.integers(0, 3)


@st.composite
def any_chain(draw):
    """Chains with and without residuals, workspaces of each kind, and a loss that costs."""
    stages = []
    for i in range(draw(st.integers(1, 5))):
        output = draw(SIZES)
        stages.append(
            Stage(
                f"s{i}",
                draw(SIZES),
                draw(SIZES),
                output,
                output + draw(SIZES),
                draw(SIZES),
                draw(SIZES),
                draw(st.none() | SIZES),
            )
        )
    return Chain("any", draw(SIZES), tuple(stages), draw(SIZES), draw(SIZES), draw(SIZES))


@settings(max_examples=examples(60))
@given(any_chain())
def test_graph_and_arrays_are_those_of_the_checked_way(chain):
    """Every op, every index of names, and every array to its type."""
    short = lowered(chain)
    checked = Graph(short.name, short.ops, dict(short.inputs), short.static_bytes)
    assert short == checked
    assert (short._op_index, short._producers) == (checked._op_index, checked._producers)
    expected = build_arrays(checked)
    for field in fields(expected):
        found, wanted = getattr(short.arrays, field.name), getattr(expected, field.name)
        if isinstance(wanted, np.ndarray):
            assert found.dtype == wanted.dtype, field.name
            assert found.flags.writeable, field.name  # as kernels take them
            np.testing.assert_array_equal(found, wanted, err_msg=field.name)
        else:
            assert found == wanted, field.name
