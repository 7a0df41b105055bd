"""What a block is for, and where it was asked for, by the stack of its request."""

from __future__ import annotations

from schedsim.snapshots.reading import Frame
from schedsim.snapshots.roles import ACTIVATION, GRADIENT, place_of, role_of


def test_roles_by_stacks():
    """Stacks are the frames that PyTorch records, innermost first."""
    engine = Frame("libtorch_cpu.so", 1, "torch::autograd::Engine::thread_main()")
    forward = Frame("/me/net.py", 7, "forward")
    lent = Frame("libtorch_cuda.so", 1, "at::cuda::getCurrentCUDABlasHandleWithWorkspace()")
    moved = Frame("/p/torch/nn/modules/module.py", 900, "_apply")
    assert role_of([engine]) == role_of([]) == "gradient"
    assert role_of([lent, engine]) == "workspace"
    assert role_of([moved, Frame("/me/train.py", 3, "<module>")]) == "parameter"
    assert role_of([forward]) == "activation"
    assert role_of([forward], known=False) == "before the record"
    product = Frame("libtorch_cpu.so", 1, "torch::autograd::generated::MmBackward0::apply(x)")
    assert place_of([product, engine]) == "MmBackward0::apply"
    assert place_of([]) == "no stack"


def test_buckets_of_gradients_are_no_activations():
    """DistributedDataParallel makes them in a forward pass; its module's activations are such."""
    ddp = Frame("/p/torch/nn/parallel/distributed.py", 9, "_pre_forward")
    call = Frame("/p/torch/nn/modules/module.py", 5, "_call_impl")
    inner = Frame("/me/net.py", 7, "forward")
    reducer = Frame("libtorch.so", 0, "c10d::Reducer::initialize_buckets(int)")
    assert role_of([ddp, call]) == GRADIENT
    assert role_of([reducer, ddp, call]) == GRADIENT
    assert role_of([inner, call, ddp, call]) == ACTIVATION
