"""A net whose forward asks whether its numbers are right, by ops without output.

Asserts stand here: in the file of a test, pytest puts other code in their place.
"""

from __future__ import annotations

import torch
from torch import nn

NOTED: list[float] = []


@torch.library.custom_op("schedsim_tests::note", mutates_args=())
def note(x: torch.Tensor) -> None:
    NOTED.append(x.sum().item())


@torch.library.custom_op("schedsim_tests::refuse_negative", mutates_args=())
def refuse_negative(x: torch.Tensor) -> None:
    if (x < 0).any():
        raise ArithmeticError("a number is negative")


for op in (note, refuse_negative):
    op.register_fake(lambda x: None)


def factorize(x, scale):
    return torch.linalg.cholesky(x @ x.T + scale * torch.eye(len(x)))


def invert(x, scale):
    return torch.linalg.inv(x @ x.T * scale.clamp(0, 1) + scale.clamp(0) * torch.eye(len(x)))


def solve(x, scale):
    full = x @ x.T * scale.clamp(0, 1) + scale.clamp(0) * torch.eye(len(x))
    return torch.linalg.solve(full, x)


def assert_in_python(x, scale):
    assert scale > 0, "scale is too small"
    return x * scale


def assert_later(x, scale):
    torch._assert_async(scale > 0, "scale is too small")
    return x * scale


def ask_custom(x, scale):
    refuse_negative(scale.detach().view(1))
    return x * scale


def note_hidden(x, scale):
    note(x.detach())
    return x * scale


class CheckedNet(nn.Module):
    def __init__(self, checked):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 24), nn.Tanh())
        self.drop, self.norm = nn.Dropout(0.2), nn.BatchNorm1d(24)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.checked = checked

    def forward(self, x):
        hidden = self.drop(self.norm(self.first(x)))
        return self.checked(hidden, self.scale).square().mean()


CHECKED = [factorize, invert, solve, assert_in_python, assert_later, ask_custom]
