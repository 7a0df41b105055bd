"""An LSTM unrolled over time: one stage per few steps, all of them with the same weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .losses import CrossEntropy, class_targets
from .workload import Workload, builder

State = tuple[Tensor, Tensor, Tensor]
"""The whole input sequence, ``h`` and ``c``."""


class Start(nn.Module):
    """Zero states beside the input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, x: Tensor) -> State:
        """``(batch, seq, features)`` to the state before the first step."""
        return x, x.new_zeros(x.shape[0], self.hidden), x.new_zeros(x.shape[0], self.hidden)


class Steps(nn.Module):
    """The cell over the time steps from `first` to before `end`, with dropout on its input."""

    def __init__(self, cell: nn.LSTMCell, first: int, end: int, dropout: float) -> None:
        super().__init__()
        self.cell, self.first, self.end, self.dropout = cell, first, end, dropout

    def forward(self, state: State) -> State:
        """The state after these steps."""
        x, h, c = state
        for t in range(self.first, self.end):
            seen = functional.dropout(x[:, t], self.dropout, self.training)
            h, c = self.cell(seen, (h, c))
        return x, h, c


class LSTMHead(nn.Module):
    """Classes from the last hidden state."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.logits = nn.Linear(hidden, classes)

    def forward(self, state: State) -> Tensor:
        """The state to ``(batch, classes)``."""
        scores: Tensor = self.logits(state[1])
        return scores


@builder
def build_lstm(
    *,
    seq: int = 256,
    hidden: int = 1024,
    features: int = 256,
    classes: int = 10,
    batch: int = 32,
    steps: int = 8,
    dropout: float = 0.1,
) -> Workload:
    """A one-layer LSTM over `seq` time steps, `steps` of them a stage.

    Parameters: ``4 * hidden * (hidden + features + 2) + classes * (hidden + 1)``, 5,261,322 by
    default.
    """
    cell = nn.LSTMCell(features, hidden)
    starts = range(0, seq, steps)
    stages = [Steps(cell, first, min(first + steps, seq), dropout) for first in starts]
    model = nn.Sequential(Start(hidden), *stages, LSTMHead(hidden, classes))
    return Workload(
        model, (torch.randn(batch, seq, features),), CrossEntropy(class_targets(classes, batch))
    )
