"""Dropout as the plain model computes it, to the bit, whatever its probability.

Tracing gives ``native_dropout``, which scales by 1 / (1 - p) rounded once. Eager kernels on the CPU
divide ones by 1 - p, both in the tensor's own format; for some p (0.15 in float32) the two differ
in the last bit. There the traced op is replaced by one that scales as eager does.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .program import Call, Program, refs

aten = torch.ops.aten

Factors = dict[tuple[float, torch.dtype], float]


def eager_factor(p: float, dtype: torch.dtype) -> float | None:
    """The factor of eager dropout on the CPU, if ``native_dropout`` gives other results.

    Examples
    --------
    >>> eager_factor(0.1, torch.float32) is None, eager_factor(0.15, torch.float32)
    (True, 1.1764705181121826)
    """
    if not 0.0 < p < 1.0:
        return None
    factor = float(torch.ones((), dtype=dtype, device="cpu").div_(1.0 - p))
    probe = torch.linspace(0.5, 2.0, 1000, device="cpu").to(dtype)
    same = torch.equal(probe * factor, probe * (1.0 / (1.0 - p)))
    return None if same else factor


def dropout_by_factor(
    x: torch.Tensor, p: float, _train: bool, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``native_dropout`` with the given factor; the same draws, the same memory."""
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1.0 - p)
    return x.mul(mask).mul_(factor), mask


def as_traced(program: Program, call: Call) -> Call:
    """`call` as it was traced, before `as_in_eager`: for inductor, which scales as traced."""
    if call.target is dropout_by_factor:
        return replace(call, target=aten.native_dropout.default, args=call.args[:3])
    if call.target is aten.native_dropout_backward.default:
        gradient, mask, _ = call.args
        maker = program.storages[program.values[next(refs(mask))].storage].call
        if maker >= 0 and program.calls[maker].target is dropout_by_factor:
            p = program.calls[maker].args[1]
            return replace(call, args=(gradient, mask, 1.0 / (1.0 - p)))
    return call


def as_in_eager(program: Program, call: Call, factors: Factors) -> None:
    """Make `call`, where it is dropout or its backward, scale as the plain model does.

    Parameters
    ----------
    factors
        Scale as traced and number format -> factor, of the dropouts so far; their backwards come
        after them.
    """
    if call.target is aten.native_dropout.default:
        x = program.values[next(refs(call.args))]
        _, p, train = call.args
        if x.device.type != "cpu" or not train:
            return
        factor = eager_factor(p, x.dtype)
        if factor is not None:
            factors[1.0 / (1.0 - p), x.dtype] = factor
            call.target = dropout_by_factor
            call.args = (*call.args, factor)
    elif call.target is aten.native_dropout_backward.default:
        gradient, mask, scale = call.args
        key = (scale, program.values[next(refs(call.args))].dtype)
        call.args = (gradient, mask, factors.get(key, scale))
