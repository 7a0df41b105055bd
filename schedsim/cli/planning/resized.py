"""The workload of a command line at other sizes: batch, sequence length or number of layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...errors import SchedsimError
from ...workloads.given import is_target
from ...workloads.options import WorkloadOptions, model_config
from ..given.workload_source import Source
from ..options.typed_sizes import read_count


@dataclass(frozen=True)
class ResizedWorkload:
    """The family of workloads that differ from the given one only in `field`.

    Attributes
    ----------
    base
        The workload as given.
    field
        ``batch``, ``seq`` or ``layers``.
    num_samples
        Samples per step at every size, if `field` is not ``batch``.
    step
        Sizes are multiples of it.
    """

    base: Source
    field: str
    num_samples: int
    step: int

    @classmethod
    def of(cls, base: Source, field: str) -> ResizedWorkload:
        """The family around `base`; `SchedsimError` if its `field` cannot be changed."""
        if base.is_model:
            batch = next((o for o in _target_options(base) if o.startswith("batch=")), "batch=1")
            return cls(base, field, read_count(batch.partition("=")[2]) or 1, 1)
        formula = base.formula()
        if formula is None:
            raise SchedsimError(
                f"--maximize {field} needs a workload that can change it",
                hint="give a --preset, --layers, FILE.py:FUNCTION or model:NAME",
            )
        split = formula.sequence_parallel and field == "seq"
        step = (formula.tensor_parallel or 1) if split else 1
        return cls(base, field, _num_samples(formula, field, step), step)

    def source(self, size: int) -> Source:
        """The command line's source with `field` at `size`."""
        if not self.base.is_model:
            return replace(self.base, options={**self.base.options, self.field: size})
        target = _target(self.base)
        name = target.split(",")[0]
        kept = [o for o in _target_options(self.base) if o.partition("=")[0] != self.field]
        text = ",".join([name, *kept, f"{self.field}={size}"])
        return replace(self.base, files=tuple(text if f == target else f for f in self.base.files))

    def work(self, size: int) -> float:
        """The amount that a step at `size` processes: samples, tokens, or layers of samples."""
        return float(size if self.field == "batch" else size * self.num_samples)


def _target(source: Source) -> str:
    return next(name for name in source.files if is_target(name))


def _target_options(source: Source) -> list[str]:
    """The options of a model target after its commas: ``batch=4``."""
    return _target(source).split(",")[1:]


def _num_samples(formula: WorkloadOptions, field: str, size: int) -> int:
    """Samples of a step whose `field` is `size`."""
    if formula.synthetic is not None:
        return 1
    return model_config(replace(formula, **dict[str, Any]({field: size}))).batch
