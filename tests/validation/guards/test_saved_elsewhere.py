"""What a backward needs, read back from where it was put."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.guards.saved_elsewhere import saved_elsewhere  # noqa: E402
from schedsim.validation.measure import AllocatorMeter  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_gradients_are_the_same_bits(dtype):
    """Gradients of views, of expanded, conjugate or empty tensors, of masks."""
    x = torch.randn(6, 8, 5).to(dtype).requires_grad_()
    scale = torch.randn(5).to(dtype).requires_grad_()

    def step():
        found = torch.tanh(x.transpose(0, 2) * 2)[::2] * scale[::2, None, None].expand(-1, 8, 6)
        found = torch.where(found.abs() > 0.3, found, found * found.conj())
        found = torch.cat([found, (found[:0] ** 2)]).sum(0)
        return torch.view_as_real(found).sum() if found.is_complex() else found.sum()

    expected = torch.autograd.grad(step(), [x, scale])
    with saved_elsewhere([scale]):
        found = torch.autograd.grad(step(), [x, scale])
    assert all(map(torch.equal, found, expected))


def test_what_was_saved_can_be_resized():
    """As FSDP2 does with the storages of gathered parameters, once they were read."""
    x = torch.randn(1000, requires_grad=True)
    with saved_elsewhere([]):
        gathered = x * 1
        found = (gathered * gathered).sum()
        gathered.untyped_storage().resize_(0)
        found.backward()
    assert torch.equal(x.grad, 2 * x)


def test_it_takes_no_memory_of_the_device():
    """One of twelve kept tensors is there at a time, and the outputs of its op."""
    x = torch.randn(1000, requires_grad=True)

    def step():
        found = x
        for _ in range(12):
            found = torch.sin(found)
        found.sum().backward()
        x.grad = None

    def elsewhere():
        with saved_elsewhere([x]):
            step()

    plain, less = (reading.peak_bytes for reading in AllocatorMeter().read(step, elsewhere))
    assert plain > 12 * 4000
    assert less < 6 * 4000


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_makes_again_takes_no_memory_of_the_device(reentrant):
    """A step that its model checkpoints is held to less than it takes; with the same bits."""
    x = torch.randn(1000, requires_grad=True)

    def deep(found):
        for _ in range(12):
            found = torch.nn.functional.dropout(torch.sin(found), 0.1)
        return found

    def step():
        torch.manual_seed(3)
        checkpoint(deep, x, use_reentrant=reentrant).sum().backward()
        gradient, x.grad = x.grad, None
        return gradient

    def elsewhere():
        with saved_elsewhere([x]):
            return step()

    plain, less = AllocatorMeter().read(step, elsewhere)
    assert plain.peak_bytes > 12 * 4000
    assert less.peak_bytes < 8 * 4000
    assert torch.equal(plain.result, less.result)
