"""Results made anew are what the ops give: sizes, strides, types, and who shares memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schedsim.validation.torch_private.fake_tensors import fake_mode  # noqa: E402
from schedsim.validation.torch_private.known_results import KnownResults  # noqa: E402
from schedsim.validation.torch_private.pytrees import tree_leaves  # noqa: E402
from schedsim.validation.torch_private.storage_refs import storage_key  # noqa: E402
from tiers import examples  # noqa: E402

aten = torch.ops.aten

OPS = {
    "view": lambda x: (aten.view.default, (x, [-1])),
    "t": lambda x: (aten.transpose.int, (x, 0, 1)),
    "slice": lambda x: (aten.slice.Tensor, (x, 1, 1, 3)),
    "split": lambda x: (aten.split.Tensor, (x, 2, 1)),
    "select": lambda x: (aten.select.int, (x, 0, -1)),
    "detach": lambda x: (aten.detach.default, (x,)),
    "expand": lambda x: (aten.expand.default, (x, [3, *x.shape])),
    "add": lambda x: (aten.add.Tensor, (x, x)),
    "half": lambda x: (aten._to_copy.default, (x,), {"dtype": torch.float16}),
    "bool": lambda x: (aten.gt.Scalar, (x, 0)),
    "mm": lambda x: (aten.mm.default, (x, aten.t.default(x))),
    "norm": lambda x: (aten.native_layer_norm.default, (x, [x.shape[-1]], None, None, 1e-5)),
    "softmax": lambda x: (aten._softmax.default, (x, -1, False)),
    "max": lambda x: (aten.max.dim, (x, 1)),
    "clone": lambda x: (
        aten.clone.default,
        (x,),
        {"memory_format": torch.contiguous_format},
    ),
}


def shown(made, sources):
    """Kind of each result, and the argument in whose memory it lies."""
    places = {storage_key(tensor): i for i, tensor in enumerate(sources)}
    return [
        type(made),
        *(
            (
                part.shape,
                part.stride(),
                part.storage_offset(),
                part.untyped_storage().nbytes(),
                part.dtype,
                part.device,
                part.requires_grad,
                places.get(storage_key(part)),
            )
            for part in tree_leaves(made)
            if part is not None
        ),
    ]


@given(
    name=st.sampled_from(sorted(OPS)),
    transposed=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(3, 5)), min_size=2, max_size=4),
)
@settings(max_examples=examples(60), deadline=None)
def test_results_are_what_the_op_gives(name, transposed, dtype, sizes):
    mode = fake_mode()
    known = KnownResults(mode)
    held = []
    with mode:
        for rows, columns in [*sizes, *sizes]:
            x = torch.empty(rows, columns, dtype=dtype)
            x = x.t() if transposed and columns != rows else x
            held.append(x)
            func, args, *rest = OPS[name](x)
            kwargs = rest[0] if rest else {}
            sources = [x]
            try:
                expected = shown(func(*args, **kwargs), sources)
            except (RuntimeError, ValueError):  # a view that these strides do not have
                with pytest.raises((RuntimeError, ValueError)):
                    known.run(func, args, kwargs)
                continue
            assert shown(known.run(func, args, kwargs), sources) == expected
            held.append(args)


def test_an_op_runs_once_on_equal_arguments(monkeypatch):
    mode = fake_mode()
    known = KnownResults(mode)
    with mode:
        tensors = [torch.empty(3, 4) for _ in range(5)]
        asked = []
        run = type(mode).dispatch

        def counted(self, func, *args, **kwargs):
            asked.append(func)
            return run(self, func, *args, **kwargs)

        monkeypatch.setattr(type(mode), "dispatch", counted)
        made = [known.run(aten.mul.Tensor, (x, 2.0), {}) for x in tensors]
        known.run(aten.mul.Tensor, (tensors[0], 2), {})  # a number of another type is another key
    assert asked.count(aten.mul.Tensor) == 2
    assert len({storage_key(x) for x in made}) == 5


def test_constants_keep_their_values():
    mode = fake_mode()
    known = KnownResults(mode)
    with mode:
        for value in (1.0, 2.0, 2.0):
            made = known.run(aten.lift_fresh.default, (torch.tensor(value),), {})
            assert made.item() == value
            doubled = known.run(aten.add.Tensor, (made, made), {})
            assert shown(doubled, []) == shown(aten.add.Tensor(made, made), [])
