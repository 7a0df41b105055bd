"""Model state: parameters, gradients and optimizer state, the bytes that are always resident."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks.checked_arguments import checked
from ..errors import SchedsimError, did_you_mean


@dataclass(frozen=True, slots=True)
class StateRule:
    """Bytes per parameter of each part of the model state.

    Attributes
    ----------
    parameter_bytes, gradient_bytes
        Bytes per weight that the step computes with, and per gradient.
    optimizer_bytes
        Bytes of moments, and of the fp32 master copy if the step computes in 2 bytes.
    says
        The rule in words.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    says: str


STATE_RULES: dict[str, StateRule] = {
    # ZeRO, section 3.1: fp16 parameters and gradients, fp32 master copy and two moments.
    "adam-mixed": StateRule(2, 2, 12, "mixed-precision Adam, 16 bytes/parameter (ZeRO)"),
    "adam": StateRule(4, 4, 8, "fp32 Adam, 16 bytes/parameter"),
    "sgd-momentum-mixed": StateRule(2, 2, 8, "mixed-precision momentum SGD, 12 bytes/parameter"),
    "sgd-momentum": StateRule(4, 4, 4, "fp32 momentum SGD, 12 bytes/parameter"),
    "sgd": StateRule(4, 4, 0, "fp32 plain SGD, 8 bytes/parameter"),
    "none": StateRule(2, 0, 0, "frozen 2-byte parameters alone"),
}


def optimizer_of(name: str | None, dtype: str) -> str:
    """The rule for optimizer `name` in a step in `dtype`: Adam by default, mixed unless in fp32.

    AdamW keeps what Adam keeps; the mixed rule has an fp32 master copy.

    Examples
    --------
    >>> optimizer_of("adamw", "bf16"), optimizer_of(None, "fp32")
    ('adam-mixed', 'adam')
    """
    if name in (None, "adamw"):
        return "adam" if dtype == "fp32" else "adam-mixed"
    assert name is not None
    return name


@checked
def model_state_bytes(
    num_parameters: int,
    *,
    optimizer: str = "adam-mixed",
    zero_stage: int = 0,
    data_parallel: int = 1,
    tensor_parallel: int = 1,
) -> int:
    """Bytes of parameters, gradients and optimizer state on one device.

    Parameters
    ----------
    num_parameters
        Parameters of the whole model.
    optimizer
        A name in `STATE_RULES`.
    zero_stage
        What ZeRO shards over the data-parallel ranks: 1 optimizer state, 2 gradients too, 3
        parameters too.
    data_parallel, tensor_parallel
        Numbers of ranks. Tensor parallelism is counted as splitting all three parts; it really
        replicates norms and biases, under 0.1 % of a transformer. Shares are rounded up to whole
        parameters and bytes.

    Returns
    -------
    int
        Bytes, without communication buffers.

    Raises
    ------
    SchedsimError
        An unknown optimizer or stage, or a number of ranks below 1.

    References
    ----------
    Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory optimizations toward training trillion parameter
    models", SC 2020, arXiv 1910.02054, section 3.1 and figure 1.

    Examples
    --------
    >>> model_state_bytes(1_500_000_000)
    24000000000
    >>> model_state_bytes(7_500_000_000, zero_stage=1, data_parallel=64)
    31406250000
    """
    if optimizer not in STATE_RULES:
        raise SchedsimError(
            f"--optimizer {optimizer!r} is unknown",
            hint=did_you_mean(optimizer, STATE_RULES, f"adamw, or one of {', '.join(STATE_RULES)}"),
        )
    if zero_stage not in (0, 1, 2, 3):
        raise SchedsimError(f"--zero {zero_stage} is not a stage", hint="0, 1, 2 or 3")
    for option, degree in (
        ("--data-parallel", data_parallel),
        ("--tensor-parallel", tensor_parallel),
    ):
        if degree < 1:
            raise SchedsimError(
                f"{option} {degree} is not at least 1",
                hint=f"give a whole number of 1 or more to {option}",
            )
    rule = STATE_RULES[optimizer]
    here = -(-num_parameters // tensor_parallel)
    parts = (rule.parameter_bytes, rule.gradient_bytes, rule.optimizer_bytes)
    total = 0
    for part, first_sharding_stage in zip(parts, (3, 2, 1), strict=True):
        ranks = data_parallel if zero_stage >= first_sharding_stage else 1
        total += -(-here * part // ranks)
    return total
