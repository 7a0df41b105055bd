"""Bytes of optimizer state, for real parameters of any number format."""

from __future__ import annotations

from torch import nn

from schedsim.errors import SchedsimError, did_you_mean

from ..torch_private.storage_refs import share_of

# Tensors of the parameter's own size and format that torch.optim keeps for each parameter.
_MOMENTS = {"none": 0, "sgd": 0, "sgd-momentum": 1, "adam": 2, "adamw": 2}
_COUNTS, _COUNT_BYTES = ("adam", "adamw"), 4


def optimizer_bytes(optimizer: str | int, model: nn.Module) -> int:
    """Bytes that `optimizer` keeps for `model`: its moments, in the parameters' own formats.

    Adam's also count their steps, in one tensor for each parameter.

    Parameters
    ----------
    optimizer
        ``"none"``, ``"sgd"``, ``"sgd-momentum"``, ``"adam"``, ``"adamw"``, or the bytes themselves
        (a master copy, say).

    Raises
    ------
    SchedsimError
        An unknown name, or a negative number.

    Examples
    --------
    >>> optimizer_bytes("adam", nn.Linear(10, 10, bias=False))
    804
    """
    if isinstance(optimizer, int) and not isinstance(optimizer, bool):
        if optimizer < 0:
            raise SchedsimError(f"optimizer={optimizer} is negative", hint="give bytes, or a name")
        return optimizer
    if optimizer not in _MOMENTS:
        raise SchedsimError(
            f"optimizer={optimizer!r} is unknown",
            hint=did_you_mean(str(optimizer), _MOMENTS, f"one of {', '.join(_MOMENTS)}, or bytes"),
        )
    trained = [share_of(p) for p in model.parameters() if p.requires_grad]
    counts = _COUNT_BYTES * len(trained) if optimizer in _COUNTS else 0
    return counts + _MOMENTS[optimizer] * sum(p.numel() * p.element_size() for p in trained)
