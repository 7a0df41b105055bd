"""Leaves of nested structures."""

from __future__ import annotations

from schedsim.validation.torch_private.pytrees import (
    TreeSpec,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)


def test_leaves_come_out_in_order_and_go_back():
    """Tuples, lists, dicts; ``None`` is a leaf."""
    tree = ({"a": 1, "b": [2, None]}, 3)
    leaves, spec = tree_flatten(tree)
    assert leaves == tree_leaves(tree) == [1, 2, None, 3]
    assert isinstance(spec, TreeSpec)
    assert tree_unflatten(leaves, spec) == tree
    assert spec.unflatten([4, 5, 6, 7]) == ({"a": 4, "b": [5, 6]}, 7)
    assert tree_map(str, [1, (2,)]) == ["1", ("2",)]
    assert tree_map_only(int, lambda n: -n, [1, "x", (2,)]) == [-1, "x", (-2,)]
