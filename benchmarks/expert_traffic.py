"""Bytes that kernels move between router and experts, counted op by op as PyTorch runs them.

Each way of a library to sort tokens by expert, to put them back, to weigh them and to add them up
is written here in the ops that its code calls, and run on the CPU with its backward. Of every op,
tensors with a row for each copy of a token count: what it reads and what it writes.
`schedsim/clusters/token_routes.py` says what a rank moves; Megatron's fused kernels are no ops of
PyTorch, and are left out.

    PYTHONPATH=. python benchmarks/expert_traffic.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from schedsim.clusters.token_routes import ROUTES

TOKENS, ACTIVE, EXPERTS, WIDTH = 16, 8, 32, 2048
ROWS = TOKENS * ACTIVE
_LARGE = ROWS * WIDTH
_ROWS_READ = ("gather", "index", "index_select")
_ADDED = ("scatter_add", "scatter_add_", "index_add", "index_add_")
_PUT = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")


class CountMoved(TorchDispatchMode):
    """Adds up the bytes of large tensors that ops read and write; views and empty ones are free."""

    moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if not (func.is_view or name in ("empty", "new_empty", "empty_like", "detach")):
            self.moved += self._bytes(name, args, out)
        return out

    def _bytes(self, name: str, args: Any, out: Any) -> int:
        if name in _ROWS_READ:
            return 2 * _size(out)
        if name == "slice_backward":  # zeros, and a copy into them
            return _size(out) + 2 * _size(args[0])
        if name in _PUT:
            accumulates = len(args) > 3 and args[3]
            return (3 if accumulates else 2) * _size(args[2])
        if name in _ADDED:
            return 3 * _size(args[3])
        read = [one for one in tree_leaves(args) if isinstance(one, Tensor)]
        if _writes_alone(name):
            read = []
        wrote = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        if name == "copy_":
            read = read[1:]
        return sum(map(_size, (*read, *wrote)))


def _writes_alone(name: str) -> bool:
    """Whether an op reads none of its tensors."""
    return name in ("zeros", "new_zeros", "zeros_like", "zero_", "fill_", "full", "ones_like")


def _size(one: Tensor) -> int:
    """Bytes of a tensor with a row for each copy of a token; 0 for a smaller or expanded one."""
    stored = one.untyped_storage().nbytes() // one.element_size()
    return one.numel() * one.element_size() if min(4 * one.numel(), stored) >= _LARGE else 0


@dataclass(frozen=True)
class Routing:
    """Where copies of tokens go: tokens in the order of their experts, and as they arrive."""

    token: Tensor  # of each copy, in the order of experts
    place: Tensor  # of each copy among those of its token, in the order of experts
    arrived: Tensor  # the order in which arrived rows are sorted
    scores: Tensor  # of each copy, in the order of experts


def _routing() -> Routing:
    torch.manual_seed(0)
    experts = torch.rand(TOKENS, EXPERTS).topk(ACTIVE).indices
    place = experts.reshape(-1).argsort(stable=True)
    scores = torch.rand(ROWS, 1, requires_grad=True)
    return Routing(place // ACTIVE, place, torch.randperm(ROWS), scores)


def _wide(index: Tensor) -> Tensor:
    return index.reshape(-1, 1).expand(-1, WIDTH)


def _padded_before(tokens: Tensor, of: Routing) -> Tensor:
    rows = torch.gather(tokens, 0, _wide(of.token))
    return torch.vstack((rows, rows.new_zeros(WIDTH)))[of.arrived, :]


def _product_before(tokens: Tensor, of: Routing) -> Tensor:
    rows = tokens[of.token]
    return torch.vstack((rows, rows.new_zeros(WIDTH)))[of.arrived, :]


def _sorted_before(tokens: Tensor, of: Routing) -> Tensor:
    return tokens[of.token][of.arrived, :]


def _deepep_before(tokens: Tensor, of: Routing) -> Tensor:
    return tokens.index_select(0, of.token)


def _megatron_before(tokens: Tensor, of: Routing) -> Tensor:
    chunks = tokens.index_select(0, of.token).split(ROWS // 4)
    return torch.cat([chunks[k] for k in (2, 0, 3, 1)])


def _back(routed: Tensor, of: Routing, extra: int) -> Tensor:
    """Rows in the order in which they arrived; a row of zeros behind them is cut off."""
    rows = routed.new_empty(ROWS + extra, WIDTH)
    rows[of.arrived, :] = routed
    return rows[:-extra] if extra else rows


def _weighed(rows: Tensor, of: Routing) -> Tensor:
    return (rows.to(torch.float32) * of.scores).to(rows.dtype)


def _added(rows: Tensor, of: Routing) -> Tensor:
    out = rows.new_zeros(TOKENS, WIDTH)
    return out.scatter_add(0, _wide(of.token), rows)


def _padded_behind(routed: Tensor, of: Routing) -> Tensor:
    return _added(_weighed(_back(routed, of, 1), of), of)


def _sorted_behind(routed: Tensor, of: Routing) -> Tensor:
    return _added(_weighed(_back(routed, of, 0), of), of)


def _product_behind(routed: Tensor, of: Routing) -> Tensor:
    rows = _back(routed, of, 1)
    by_token = torch.zeros(ROWS, WIDTH, dtype=rows.dtype)
    by_token[of.place] = rows
    scores = of.scores.reshape(TOKENS, 1, ACTIVE)
    return torch.bmm(scores, by_token.reshape(TOKENS, ACTIVE, WIDTH).float()).to(rows.dtype)


def _deepep_behind(routed: Tensor, of: Routing) -> Tensor:
    return _added(routed * of.scores.to(routed.dtype), of)


def _megatron_behind(routed: Tensor, of: Routing) -> Tensor:
    chunks = routed.split(ROWS // 4)
    return _added(torch.cat([chunks[k] for k in (1, 3, 0, 2)]), of)


Step = Callable[[Tensor, Routing], Tensor]
WAYS: dict[str, tuple[Step, Step]] = {
    "padded": (_padded_before, _padded_behind),
    "product": (_product_before, _product_behind),
    "sorted": (_sorted_before, _sorted_behind),
    "deepep": (_deepep_before, _deepep_behind),
    "megatron": (_megatron_before, _megatron_behind),
}


def _moved(step: Step, given: Tensor) -> tuple[float, float]:
    """Bytes that a step moves forward and backward, for each byte of the routed tokens."""
    routing = _routing()
    given.requires_grad_()
    with CountMoved() as forward:
        out = step(given, routing)
    gradient = torch.ones_like(out)
    with CountMoved() as backward:
        out.backward(gradient)
    routed = ROWS * WIDTH * 2
    return forward.moved / routed, backward.moved / routed


def counted(name: str) -> tuple[float, float, float, float]:
    """What `TokenRoute` holds: before and behind experts, and backward behind and before them."""
    before, behind = WAYS[name]
    tokens = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)
    routed = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
    sent, sent_back = _moved(before, tokens)
    combined, combined_back = _moved(behind, routed)
    return sent, combined, combined_back, sent_back


def table() -> Iterator[str]:
    """A row for each way: what is counted, and what the model takes."""
    yield "way: before, behind, behind backward, before backward; those of the model"
    for name in WAYS:
        ours = ROUTES[name]
        model = (ours.sent, ours.combined, ours.combined_back, ours.sent_back)
        words = [" ".join(f"{one:.2f}" for one in some) for some in (counted(name), model)]
        yield f"{name}: {'; '.join(words)}"


def main() -> None:
    """Print the table."""
    print(f"torch {torch.__version__}: bytes a byte of routed tokens")
    for line in table():
        print(line)


if __name__ == "__main__":
    main()
