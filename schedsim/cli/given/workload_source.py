"""Where a workload comes from: files, the options of a formula, or a real model."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from ...errors import SchedsimError
from ...plans.source import WorkloadSource
from ...workloads.given import is_target
from ...workloads.options import WorkloadOptions
from ..options.formula import flags
from ..options.typed_sizes import size_text


@dataclass(frozen=True)
class Source:
    """Where a workload comes from: files, or the options of a formula.

    Attributes
    ----------
    again
        Whether to measure a model again although its times are known (``--remeasure``).
    """

    files: tuple[str, ...]
    options: dict[str, Any]
    level: str | None = None
    allow: tuple[str, ...] = ()
    again: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """The formula options that were given."""
        return {k: v for k, v in self.options.items() if v is not None and v is not False}

    def given_flags(self) -> dict[str, Any]:
        """Flag -> value of everything that was given besides files."""
        known = flags()
        given = {known[field]: value for field, value in self.given.items()}
        given |= {"--level": self.level} if self.level else {}
        return given | ({"--remeasure": True} if self.again else {})

    @property
    def origin(self) -> WorkloadSource:
        """The origin of the workload, as a plan file remembers it."""
        if self.is_model:
            target = next(name for name in self.files if is_target(name))
            given = {"level": self.level, "device": self.options["device"]}
            options = {name: value for name, value in given.items() if value is not None}
            return WorkloadSource("model", options, target=target)
        if self.given:
            return WorkloadSource("formula", self.given)
        return WorkloadSource("file", path=self.files[0])

    @property
    def is_model(self) -> bool:
        """Whether the workload is a real model; ``--device`` then says where it runs."""
        return any(is_target(name) for name in self.files)

    def formula(self) -> WorkloadOptions | None:
        """The formula; ``None`` for a workload from a file or a model."""
        if self.is_model:
            other = [name for name in self.given if name != "device"]
            if other:
                raise SchedsimError(
                    f"both a model and {flags()[other[0]]} are given",
                    hint="a model takes its options after commas: model:resnet50,batch=4",
                )
            return None
        return WorkloadOptions(**self.options, allow=self.allow) if self.given else None

    def arguments(self) -> str:
        """The shell arguments that describe this workload."""
        words, known = list(self.files[:1]), flags()
        words += ["--level", self.level] if self.level else []
        for field, value in self.given.items():
            text = size_text(value) if field == "static" and value != "auto" else str(value)
            words += [known[field]] if value is True else [known[field], text]
        return shlex.join(words)
