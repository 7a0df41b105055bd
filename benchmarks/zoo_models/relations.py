"""Graph networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .subject import Subject, entry

NODES, EDGES, WIDTH, CLASSES = 60, 240, 16, 4


def _graph() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(NODES, WIDTH),
        torch.randint(0, NODES, (2, EDGES)),
        torch.randint(0, CLASSES, (NODES,)),
    )


def _network(kind: str, **options: object) -> Subject:
    from torch_geometric import nn as geometric

    model = getattr(geometric, kind)(WIDTH, 24, 3, CLASSES, dropout=0.2, **options)
    x, edges, y = _graph()
    return Subject(model, (x, edges), (y,), nn.functional.cross_entropy)


@entry("graph network", "torch_geometric")
def gcn() -> Subject:
    return _network("GCN")


@entry("graph network", "torch_geometric")
def gat() -> Subject:
    return _network("GAT", heads=2, v2=True)


@entry("graph network", "torch_geometric")
def graph_sage() -> Subject:
    return _network("GraphSAGE", norm="batch_norm")


@entry("graph network", "torch_geometric")
def gin() -> Subject:
    return _network("GIN")


class _MessagePassing(nn.Module):
    """Messages of pairs, summed where they arrive, and a GRU (Gilmer et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.update, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        state = x
        for _ in range(3):
            pairs = torch.cat([state[edges[0]], state[edges[1]]], 1)
            arrived = torch.zeros_like(state).index_add_(0, edges[1], self.message(pairs))
            state = self.update(nn.functional.dropout(arrived, 0.1), state)
        found: Tensor = self.head(state)
        return found


@entry("graph network")
def message_passing() -> Subject:
    x, edges, y = _graph()
    return Subject(_MessagePassing(), (x, edges), (y,), nn.functional.cross_entropy)


class _Pooled(nn.Module):
    """Sets of different sizes, each as its largest entries: `scatter_reduce` and `unique`."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 24))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor, owner: Tensor) -> Tensor:
        num = int(owner.max()) + 1
        index = owner[:, None].expand(-1, 24)
        empty = x.new_full((num, 24), -1e4)
        most = empty.scatter_reduce(0, index, self.encode(x), "amax", include_self=True)
        found: Tensor = self.head(nn.functional.dropout(most, 0.1))
        return found


@entry("graph network")
def deep_sets() -> Subject:
    owner = torch.arange(NODES) // 6
    y = torch.randint(0, CLASSES, (NODES // 6,))
    return Subject(_Pooled(), (torch.randn(NODES, WIDTH), owner), (y,), nn.functional.cross_entropy)
