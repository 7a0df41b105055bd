"""Graphs of real models: what is counted, under which names, and that nothing is allocated."""

from __future__ import annotations

import contextlib
import resource

import pytest
import torch
from schedsim.validation.capture import capture
from step_models import STEPS, Block, DropoutMLP, TinyGPT, make_step, token_loss
from tiers import slow_where
from torch import nn

from schedsim import Schedule, simulate
from schedsim.errors import SchedsimError, UnsupportedError

FLOAT = 4


def test_ops_are_named_by_the_module_they_are_in():
    """Before the first autograd node, in nested modules, in the loss, and in their backwards."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x).tanh()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Inner(), Inner()])

        def forward(self, x):
            ones = x.new_ones(4)
            for part in self.parts:
                x = part(x * ones)
            return x.exp()

    graph = capture(Outer(), (torch.zeros(2, 4),), lambda output: output.square().sum()).graph
    assert graph.op_names[:9] == (
        "new_ones",
        "mul",
        "parts.0.linear.addmm",
        "parts.0.tanh",
        "mul#2",
        "parts.1.linear.addmm",
        "parts.1.tanh",
        "exp",
        "loss.pow",
    )
    assert "grad.parts.1.tanh" in graph.op_names
    assert "grad.parts.0.linear.mm" in graph.op_names


@pytest.mark.parametrize("name", slow_where(STEPS, lambda name: name in ("lstm", "gpt", "unet")))
def test_the_graph_is_the_same_every_time(name):
    """Names, order and sizes do not depend on addresses, or on whether the model has memory."""
    first = capture(*make_step(name)).graph
    with torch.device("meta"):
        again = capture(*make_step(name)).graph
    assert first == again


def test_the_model_is_left_alone():
    """Parameters stay the same objects, hooks and buffers as they were."""
    model, inputs, loss = make_step("resnet")
    before = [(id(p), p._version) for p in [*model.parameters(), *model.buffers()]]
    capture(model, inputs, loss)
    assert before == [(id(p), p._version) for p in [*model.parameters(), *model.buffers()]]
    assert not any(module._forward_hooks for module in model.modules())


def test_state_of_optimizers_is_static():
    """Adam keeps two tensors per trained parameter, in its own format, and a count of steps."""
    model, inputs, loss = make_step("mlp")
    counts = FLOAT * len(list(model.parameters()))
    plain = capture(model, inputs, loss).graph.static_bytes
    assert capture(model, inputs, loss, optimizer="adam").graph.static_bytes == 3 * plain + counts
    assert capture(model, inputs, loss, optimizer=100).graph.static_bytes == plain + 100
    with pytest.raises(SchedsimError, match="optimizer='adm' is unknown"):
        capture(model, inputs, loss, optimizer="adm")


@pytest.mark.slow
def test_attention_of_cuda_stores_no_square_matrix():
    """T = 64: on CPU dropout makes the plain form; CUDA's stores the output and fp32 rows."""
    torch.manual_seed(0)
    length, width, heads = 64, 32, 4
    model = Block(width, heads, 0.1).to(torch.bfloat16)
    x = torch.zeros(2, length, width, dtype=torch.bfloat16)

    def loss(output):
        return output.float().square().mean()

    square = 2 * heads * length * length * FLOAT  # the plain form computes it in fp32
    native, cuda = capture(model, (x,), loss), capture(model, (x,), loss, kernels="cuda")

    def sizes(captured):
        return [size for op in captured.graph.ops for size in op.writes.values()]

    assert square in sizes(native)
    assert square not in sizes(cuda)
    attention = cuda.graph.ops[cuda.graph.op_index("flash_attention")]
    assert attention.writes["flash_attention:0"] == 2 * length * width * 2
    assert attention.writes["flash_attention:1"] == 2 * heads * length * FLOAT
    assert native.backend == "cpu"
    assert cuda.backend == "cuda"
    assert any("kernels='cuda'" in note for note in native.notes)
    with pytest.raises(UnsupportedError, match="substitute"):
        cuda.module(Schedule.store_all(cuda.graph))
    # In fp32 there is no flash kernel: memory-efficient attention, rows padded to 32.
    efficient = capture(model.float(), (x.float(),), loss, kernels="cuda").graph
    op = efficient.ops[efficient.op_index("efficient_attention")]
    assert op.writes["efficient_attention:1"] == 2 * heads * length * FLOAT


@pytest.mark.slow
def test_large_models_take_no_memory():
    """A quarter of GPT-2 XL on the meta device: little of it, though a step needs over 30 GB."""
    with torch.device("meta"):
        model = TinyGPT(12, 1600, 25, 50257, 1024)
        tokens = torch.zeros(8, 1024, dtype=torch.long)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    captured = capture(model, (tokens, tokens), token_loss)
    # 12 d^2 + 13 d in a block, V d and T d in the embeddings, 2 d in the last norm.
    num_parameters = 12 * (12 * 1600**2 + 13 * 1600) + (50257 + 1024 + 2) * 1600
    assert captured.graph.static_bytes == FLOAT * num_parameters
    assert simulate(captured.graph, Schedule.store_all(captured.graph)).peak_bytes > 3 * 10**10
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 3 * 10**5  # KiB


class TestRefusals:
    """A model that cannot be captured is refused with the line, and with a way out."""

    def test_as_many_ops_as_there_are_numbers(self):
        class Branching(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x)
                return y[y > 0].sum()  # the line in the way

        with pytest.raises(UnsupportedError) as caught:
            capture(Branching(), (torch.ones(2, 4),))
        assert "test_capture.py" in str(caught.value)
        assert "y[y > 0]" in str(caught.value)
        assert "by blocks" in caught.value.hint

    @pytest.mark.slow
    def test_gradients_stay_on_where_a_trace_fails_within_no_grad(self):
        """Torch's own left them off."""

        class Looping(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x)
                with torch.no_grad():
                    given = torch.zeros((), dtype=torch.long), y.detach().clone()
                    _, z = torch._higher_order_ops.while_loop(
                        lambda i, z: i < 3, lambda i, z: (i + 1, z * 0.5), given
                    )
                return (y * z).sum()

        with torch.enable_grad():
            with contextlib.suppress(UnsupportedError):  # torch 2.13 cannot trace it
                capture(Looping(), (torch.ones(2, 4),))
            assert torch.is_grad_enabled()

    def test_no_scalar(self):
        with pytest.raises(UnsupportedError, match="one scalar"):
            capture(DropoutMLP(), (torch.zeros(2, 32),))

    def test_no_gradient(self):
        model = DropoutMLP().requires_grad_(False)
        with pytest.raises(UnsupportedError, match="needs no gradient"):
            capture(model, (torch.zeros(2, 32),), lambda output: output.sum())

    def test_a_layer_without_a_shape(self):
        with pytest.raises(UnsupportedError, match="weight has no shape yet"):
            capture(nn.LazyLinear(3), (torch.zeros(2, 32),), lambda output: output.sum())

    def test_inputs_that_do_not_fit(self):
        """The model's own error is passed on."""
        with pytest.raises(RuntimeError, match=r"reduction dim|multiplied"):
            capture(DropoutMLP(), (torch.zeros(2, 31),), lambda output: output.sum())

    def test_unknown_kernels(self):
        with pytest.raises(SchedsimError, match="kernels='rocm' is unknown"):
            capture(DropoutMLP(), (torch.zeros(2, 32),), kernels="rocm")
