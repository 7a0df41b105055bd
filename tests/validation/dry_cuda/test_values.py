"""Values for the dry device: tensors over other tensors' bytes, seeds, and results put in place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.dry_cuda import has_values, is_dry, values  # noqa: E402
from schedsim.validation.dry_cuda.values import (  # noqa: E402
    Values,
    _computed,
    _on_cpu,
    _seed,
    _write,
    overlay,
)

from schedsim.errors import UnsupportedError  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_tensor_laid_over_another_has_its_bytes(dtype):
    """Views with strides and offsets among them; writing to one is writing to the other."""
    whole = torch.arange(24).reshape(4, 6).to(dtype)
    for given in (whole, whole.t(), whole[1:, 2:5], whole[:, ::2], whole[2, 3]):
        laid = overlay(given)
        assert torch.equal(laid, given)
        assert laid.stride() == given.stride()
        assert laid.data_ptr() == given.data_ptr()
    overlay(whole[1:, 2:5]).zero_()
    assert not whole[1:, 2:5].any()
    empty = overlay(whole[:0])
    assert empty.shape == (0, 6)


@pytest.fixture
def pretended(monkeypatch):
    """Every tensor passes for one of the device."""
    monkeypatch.setattr(values, "_on_cuda", lambda item: isinstance(item, torch.Tensor))


def test_results_are_put_where_the_devices_are(pretended):
    """Shape by shape; padded statistics to their front; what was done in place is left."""
    made = torch.zeros(2, 3)
    _write("op", [made], torch.ones(2, 3))
    assert made.all()
    padded = torch.zeros(2, 32)
    _write("op", [padded, None], (torch.ones(2, 5), None))
    assert padded.flatten().tolist() == [1.0] * 10 + [0.0] * 54
    same = torch.ones(4)
    _write("op", [same], same)
    with pytest.raises(UnsupportedError, match=r"no values for op: \(9,\) on the CPU, \(4,\)"):
        _write("op", [torch.zeros(4)], torch.ones(9))


def test_ops_compute_on_the_same_bytes_and_leave_the_generator(pretended):
    """With the seed that is given for those that draw."""
    one, two = torch.rand(3, 4), torch.rand(4, 2)
    before = torch.get_rng_state()
    torch.testing.assert_close(_computed(aten.mm.default, (one, two), {}, None), one @ two)
    drawn = [_computed(aten.rand_like.default, (one,), {"pin_memory": False}, s) for s in (3, 3, 4)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), before)


class NotRun:
    """An op whose first call, the device's, runs no kernel and so answers with `left`."""

    def __init__(self, op, left):
        self.op, self.left = op, [left]

    def __getattr__(self, name):
        return getattr(self.op, name)

    def __call__(self, *args, **kwargs):
        return self.left.pop() if self.left else self.op(*args, **kwargs)


def test_numbers_are_not_read_from_what_the_device_left(pretended):
    """``allclose`` is one op, whose answer the device would read from a kernel's result."""
    ones, mode = torch.ones(3), Values()
    for left in (False, True):
        for other in (ones, ones + 1):
            op = NotRun(aten.allclose.default, left)
            found = mode.__torch_dispatch__(op, (), (ones, other))
            assert found is torch.equal(ones, other)


def test_copies_on_the_host_have_the_values(monkeypatch):
    """A strided copy is made contiguous on the device first, by a kernel."""
    given = torch.arange(12.0).reshape(3, 4)
    left = torch.zeros(3, 2)
    monkeypatch.setattr(values, "_on_cuda", lambda item: item is strided)
    strided = given[:, ::2]
    op = NotRun(aten._to_copy.default, left)
    found = Values().__torch_dispatch__(op, (), (strided,), {"device": torch.device("cpu")})
    assert found is left
    assert torch.equal(found, strided)


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_dry() and has_values(torch.device("cuda"))),
    reason="no dry device with values",
)
def test_a_dropped_attention_has_one_mask():
    """Its output is linear in its values, so that their gradient gives it back; on any memory."""
    query, value = (torch.rand(2, 2, 16, 8, device="cuda", requires_grad=True) for _ in range(2))
    out = torch.nn.functional.scaled_dot_product_attention(query, query, value, dropout_p=0.5)
    (back,) = torch.autograd.grad(out.sum(), value)
    torch.testing.assert_close((value * back).sum(), out.sum())
    for byte in (0, 1, 255):
        torch.full((4096,), byte, dtype=torch.uint8, device="cuda")
        assert torch.allclose(query, query)
        assert not torch.allclose(query, query + 1)


def test_an_op_that_the_cpu_has_not_is_refused():
    """With what works without values."""

    class Missing:
        overloadpacket = "missing"

        def __call__(self, *args, **kwargs):
            raise NotImplementedError

        def __str__(self):
            return "aten.missing"

    with pytest.raises(UnsupportedError, match=r"no values for aten\.missing") as caught:
        _computed(Missing(), (), {}, None)
    assert "without --values" in caught.value.hint


def test_seeds_follow_the_generator_of_the_device(monkeypatch):
    """Only ops that draw have one: the same state gives the same seed, another state another."""
    states = {"now": torch.tensor([7, 4], dtype=torch.int64).view(torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: states["now"])
    first = _seed(aten.native_dropout.default, {})
    assert first == _seed(aten.native_dropout.default, {})
    assert 0 <= first < 2**31
    states["now"] = torch.tensor([7, 8], dtype=torch.int64).view(torch.uint8)
    assert _seed(aten.native_dropout.default, {}) != first
    assert _seed(aten.mm.default, {}) is None
    assert _seed(aten.rand_like.default, {"generator": torch.Generator()}) is None
    assert _seed(aten._scaled_dot_product_flash_attention.default, {}) is not None


def test_arguments_are_those_of_the_cpu():
    """Devices and generators; all else as it is."""
    assert _on_cpu(torch.device("cuda:1")) == torch.device("cpu")
    assert _on_cpu(torch.Generator()) is None
    thing = SimpleNamespace()
    assert _on_cpu(thing) is thing
