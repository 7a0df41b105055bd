"""The modules of a model that can work in chunks of the tokens, and a twin that does so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError, UnsupportedError

from ..block_level.repeated_forward import untouched
from ..block_level.scheduled_blocks import plain_loss
from ..capture.skeleton import count_extra_inputs
from ..torch_private.module_tables import buffers_of, set_buffers
from ..torch_private.pytrees import tree_leaves
from .chunked_loss import chunked_cross_entropy
from .chunked_mlp import in_chunks
from .logits import ChunkedLoss
from .microbatch import Splitter, batch_size, is_close
from .twin import become, twin

PIECES = ("head", "mlp")
MIN_ROWS = 128


def read_chunks(chunk: Any) -> dict[str, int | str]:
    """``"auto"``, ``8`` or ``{"head": 8, "mlp": "auto"}`` as a mapping; an empty one for ``None``.

    Raises
    ------
    SchedsimError
        `chunk` is none of these.

    Examples
    --------
    >>> read_chunks("auto"), read_chunks({"mlp": 4}), read_chunks(None)
    ({'head': 'auto', 'mlp': 'auto'}, {'mlp': 4}, {})
    """
    if chunk is None:
        return {}
    asked = dict(chunk) if isinstance(chunk, Mapping) else dict.fromkeys(PIECES, chunk)
    for name, num in asked.items():
        whole = isinstance(num, int) and not isinstance(num, bool) and num >= 1
        if name not in PIECES or not (num == "auto" or whole):
            raise SchedsimError(
                f"chunk={chunk!r} is not understood",
                hint="'auto', a number of chunks, or {'head': 8, 'mlp': 4}",
            )
    return asked


def chunked(
    model: nn.Module,
    loss: Any,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    chunks: Mapping[str, int],
    *,
    unrolled: bool,
) -> tuple[nn.Module, Any]:
    """A twin of `model` that computes the pieces in `chunks` in so many chunks, and its loss.

    Parameters
    ----------
    unrolled
        Whether the planner sees the feed-forward layers' chunks as ops; otherwise they are one
        function that recomputes them. The head is one op in both cases.

    Raises
    ------
    UnsupportedError
        A piece is not found, or its chunks compute something else; the message says why.
    """
    if any(type(p.data) is not Tensor for p in model.parameters()):
        raise UnsupportedError(
            "parameters are sharded: chunks would read them outside of their module's forward",
            hint="chunk before sharding by hand, or leave chunk= out",
        )
    other, other_loss = twin(model), loss
    one = _one_sample(model, loss, inputs, keywords)
    if "mlp" in chunks:
        for layer, method in _token_wise(other):
            become(layer, _mixin(method), _num_chunks=chunks["mlp"], _unrolled=unrolled)
    if "head" in chunks:
        other_loss = _chunk_head(other, loss, chunks["head"], *one)
    _check_same(model, loss, other, other_loss, *one)
    return other, other_loss


def auto_chunks(
    model: nn.Module, loss: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any], piece: str
) -> int:
    """Number of chunks whose inner tensors are each about as large as all hidden states.

    This is the rule of Liger Kernel (Hsu et al. 2024, arXiv 2410.10989) for the head; but no chunk
    has fewer than `MIN_ROWS` tokens, because smaller matrix products would not fill a processor.
    """
    most = max(1, -(-_num_tokens(inputs, keywords) // MIN_ROWS))
    if piece == "head":
        one = _one_sample(model, loss, inputs, keywords)
        head = _output_projection(model, loss, *one)
        wide, narrow = int(head.weight.shape[0]), int(head.weight.shape[1])
        return min(most, max(1, -(-wide // narrow)))
    layers = _token_wise(model)
    shapes = [p.shape for layer, _ in layers for p in layer.parameters() if p.dim() == 2]
    widest = max(max(shape) for shape in shapes)
    return min(most, max(1, -(-int(widest) // int(min(min(shape) for shape in shapes)))))


def _num_tokens(inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> int:
    """Number of elements of the first tensor of whole numbers; else of its rows."""
    tensors = [leaf for leaf in tree_leaves((inputs, keywords)) if isinstance(leaf, Tensor)]
    whole = [t for t in tensors if t.dim() > 1 and not t.is_floating_point()]
    return whole[0].numel() if whole else batch_size(inputs, keywords)


# -- the head and the loss ---------------------------------------------------------------------


class _Unprojected:
    """A last linear layer that returns its input."""

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden`."""
        return hidden


class _CausalLoss:
    """A language model of transformers whose loss takes hidden states instead of logits."""

    _num_chunks: int

    def loss_function(
        self, logits: Tensor, labels: Tensor, vocab_size: int, **keywords: Any
    ) -> Tensor:
        """Mean cross entropy of the next token, computed as transformers' ForCausalLMLoss does."""
        known = ("ignore_index", "shift_labels", "num_items_in_batch")
        ignored = keywords.get("ignore_index", -100)
        total = keywords.get("num_items_in_batch")
        shifted = keywords.get("shift_labels")
        if any(value is not None for name, value in keywords.items() if name not in known):
            raise UnsupportedError(
                f"the head cannot be chunked: the loss is given {sorted(keywords)}",
                hint="leave 'head' out of chunk=",
            )
        if shifted is None:
            padded = nn.functional.pad(labels, (0, 1), value=ignored)
            shifted = padded[..., 1:].contiguous()
        head: Any = self.lm_head  # type: ignore[attr-defined]
        loss = chunked_cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            head.weight,
            head.bias,
            shifted.reshape(-1),
            num_chunks=self._num_chunks,
            ignore_index=ignored,
            reduction="mean" if total is None else "sum",
        )
        return loss if total is None else loss / total


_CAUSAL = ("GPT2LMHeadModel", "LlamaForCausalLM")
"""Models of transformers known to pass their projection straight to a causal loss. Others are tried
in the same way, and refused if their loss differs."""


def _chunk_head(
    model: nn.Module,
    loss: Any,
    num_chunks: int,
    loss_inputs: Any,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Any:
    head = _output_projection(model, loss, loss_inputs, inputs, keywords)
    become(head, _Unprojected)
    if loss is None:
        become(model, _CausalLoss, _num_chunks=num_chunks)
        return None
    # The weights are read from the projection, which stays in the model.
    return ChunkedLoss(loss, head, num_chunks)


def _output_projection(
    model: nn.Module,
    loss: Any,
    _loss: Any,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> nn.Linear:
    """The linear layer whose output is the model's output."""
    if loss is None:
        head = getattr(model, "lm_head", None)
        if not isinstance(head, nn.Linear) or not hasattr(model, "loss_function"):
            raise UnsupportedError(
                f"{type(model).__name__} gives its own loss, and is no language model of "
                "transformers with an lm_head: what it does with its logits is not known",
                hint="pass loss=, so that the model gives logits; or leave 'head' out of chunk=",
            )
        return head
    made: list[tuple[nn.Linear, Any]] = []

    def after(module: Any, _: Any, output: Any) -> None:
        made.append((module, output))

    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_hook(after) for module in linears]
    extra = count_extra_inputs(model, loss, len(inputs))
    try:
        with torch.no_grad(), untouched(model):
            output = model(*inputs[: len(inputs) - extra], **keywords)
    finally:
        for handle in handles:
            handle.remove()
    found = [module for module, out in made if out is output]
    calls = sum(module is found[0] for module, _ in made) if found else 0
    if calls != 1:
        raise UnsupportedError(
            f"the output of {type(model).__name__} is not that of a linear layer called once, so "
            "that it has no head to be chunked",
            hint="let the model's last step be an nn.Linear; or leave 'head' out of chunk=",
        )
    return found[0]


# -- feed-forward layers -----------------------------------------------------------------------


def _mixin(method: str) -> type:
    def chunked_method(self: Any, x: Tensor) -> Tensor:
        inner: Callable[[Tensor], Tensor] = getattr(super(mixin, self), method)
        own = tuple(self.parameters()) if method == "forward" else _used(self)
        return in_chunks(inner, x, own, self._num_chunks, self._unrolled)

    mixin = type("_Chunked", (), {method: chunked_method})
    return mixin


def _used(block: Any) -> tuple[Tensor, ...]:
    """Parameters of the modules that the feed-forward of the block runs, as the block states."""
    return tuple(p for name in block.FEED_FORWARD for p in getattr(block, name).parameters())


def _token_wise(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Feed-forward layers: modules that are one, or blocks with a method that computes one."""
    found: list[tuple[nn.Module, str]] = []
    for name, module in model.named_modules():
        if getattr(module, "FEED_FORWARD", ()):
            found.append((module, "feed_forward"))
        elif _is_feed_forward(name.rpartition(".")[2], module):
            found.append((module, "forward"))
    if not found:
        raise UnsupportedError(
            f"{type(model).__name__} has no feed-forward layers that are modules of their own",
            hint="name them mlp, ffn or feed_forward, of one input; or leave 'mlp' out of chunk=",
        )
    return found


def _is_feed_forward(name: str, module: nn.Module) -> bool:
    linear = any(p.dim() == 2 for p in module.parameters())
    named = name in ("mlp", "ffn", "feed_forward") or type(module).__name__.endswith(
        ("MLP", "FeedForward")
    )
    return linear and named and not isinstance(module, nn.ModuleList)


# -- checks ------------------------------------------------------------------------------------


def _one_sample(
    model: nn.Module, loss: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(loss, inputs, keywords) of the first sample, as a whole batch may need too much memory."""
    splitter = Splitter(model, loss, batch_size(inputs, keywords))
    part = splitter.parts(inputs, keywords)[0]
    for path, buffer in part.buffers.items():
        parent, _, name = path.rpartition(".")
        owner = splitter.loss.get_submodule(parent)
        set_buffers(owner, {**buffers_of(owner), name: buffer})
    return splitter.loss, part.inputs, part.keywords


def _check_same(
    model: nn.Module,
    loss: Any,
    other: nn.Module,
    other_loss: Any,
    one_loss: Any,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> None:
    """Refuse chunks that change the loss, compared without dropout."""
    extra = count_extra_inputs(model, loss, len(inputs))
    if isinstance(other_loss, ChunkedLoss):
        other_loss = ChunkedLoss(one_loss, other_loss.head, other_loss.num_chunks)
    elif loss is not None:
        other_loss = one_loss
    dropped = [m for root in (model, other) for m in root.modules() if m.training]
    try:
        for module in dropped:
            module.training = False
        with torch.no_grad(), untouched(model):
            plain = plain_loss(model, one_loss, inputs, keywords, extra)
            mine = plain_loss(other, other_loss, inputs, keywords, extra)
    finally:
        for module in dropped:
            module.training = True
    if plain.shape != mine.shape or not is_close(plain, mine):
        raise UnsupportedError(
            f"in chunks the loss of {type(model).__name__} is {float(mine):.6g} instead of "
            f"{float(plain):.6g}: a piece looks at several tokens, or changes the logits",
            hint="chunk= the other piece alone, or leave it out",
        )
