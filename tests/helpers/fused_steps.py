"""Small steps to fuse, and what a module makes of one."""

from __future__ import annotations

import torch
from schedsim.validation.capture import capture
from schedsim.validation.capture.program import Call, Program, Ref, Storage, Value
from torch import nn

aten = torch.ops.aten


class Gated(nn.Module):
    """A normalised, gated layer with a residual: chains to fuse, and a reduction."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.drop = nn.Linear(2 * width, width), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        y = self.norm(x)
        hidden = nn.functional.silu(self.gate(y)) * self.up(y)
        return x + self.drop(self.down(hidden))


def gated(layers: int = 2, width: int = 16, dropout: float = 0.0):
    """Model, inputs and loss."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Gated(width, dropout) for _ in range(layers)), nn.Linear(width, 10))
    inputs = torch.randn(32, width), torch.randint(10, (32,))
    return model, inputs, nn.functional.cross_entropy


class Branches(nn.Module):
    """Layers whose input has several readers, as the three products in front of attention."""

    def __init__(self, layers: int = 3, width: int = 16) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.made = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's output."""
        for norm, made in zip(self.norms, self.made, strict=True):
            y = norm(x)
            x = y + sum(torch.tanh(one(y)) for one in made)
        return x


def branched():
    """A step whose sums of many parts, each in one group, take more room than its ops."""
    torch.manual_seed(0)
    inputs = torch.randn(512, 16), torch.randn(512, 16)
    return Branches(), inputs, nn.functional.mse_loss


def dropped(layers: int = 4, width: int = 16):
    """A few distinct pieces of code: linear layers, an activation and dropout."""
    torch.manual_seed(0)
    parts = (
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3)) for _ in range(layers)
    )
    inputs = torch.randn(512, width), torch.randn(512, width)
    return nn.Sequential(*parts), inputs, nn.functional.mse_loss


class Turned(nn.Module):
    """Complex numbers between real ones; the imaginary part of a conjugate is negated later."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.randn(width, width, dtype=torch.cfloat) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A real tensor."""
        turned = (torch.tanh(self.first(x)) + 0j) @ self.weight
        conjugate = turned.conj()
        return conjugate.imag.tanh() * 2 + conjugate.real + (turned + conjugate * 1j).abs().sin()


def turned():
    """A step with complex numbers."""
    torch.manual_seed(0)
    return Turned(), (torch.randn(64, 16), torch.randn(64, 16)), nn.functional.mse_loss


def convolutional():
    """Convolutions with batch statistics, an activation in place, and pooling."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return model, (torch.randn(4, 3, 8, 8), torch.randint(4, (4,))), nn.functional.cross_entropy


def captured_step(model, inputs, loss):
    """The captured graph."""
    return capture(model, inputs, loss)


def left_by(step, model, inputs, seed=0):
    """Loss, gradients and buffers of a step from one start."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.zero_grad()
    torch.manual_seed(seed)
    value = step(*inputs)
    value.backward()
    found = [value.detach(), *(p.grad for p in model.parameters())]
    found += [buffer.clone() for buffer in model.buffers()]
    model.zero_grad()
    model.load_state_dict(state)
    return found


def assert_close(found, expected):
    """Within rounding."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def chain_program(shape=(4, 8)):
    """a -> sin -> times b -> sum over rows."""
    program = Program()
    stride = (shape[1], 1)
    for kind in ("input", "input", "computed", "computed", "computed"):
        program.storages.append(Storage(4 * shape[0] * shape[1], kind))
    for s in range(4):
        program.values.append(Value(s, shape, stride, torch.float32, torch.device("cpu")))
    program.values.append(Value(4, shape[1:], (1,), torch.float32, torch.device("cpu")))
    program.calls = [
        Call("sin", aten.sin.default, (Ref(0),), {}, outputs=[2]),
        Call("mul", aten.mul.Tensor, (Ref(2), Ref(1)), {}, outputs=[3]),
        Call("sum", aten.sum.dim_IntList, (Ref(3), [0]), {}, outputs=[4]),
    ]
    return program
