"""Stage plans: the runs of a stage's backward for one micro-batch, recomputation included."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidScheduleError


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The backward of a stage for one micro-batch, repeated forwards included.

    The forward runs every layer once, in order. It keeps the tensors that the backward reads before
    the
    layer that writes them runs again.

    Parameters
    ----------
    backward
        Runs, with layers counted from the stage's first: ``F{i}`` runs layer i again, ``B{i}`` runs
        its backward.

    Examples
    --------
    >>> layer_inputs(2)
    StagePlan(F1 B1 F0 B0)
    """

    backward: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "backward", tuple(self.backward))
        done = [run for run in self.backward if run[:1] == "B"]
        wanted = [f"B{i}" for i in range(self.num_layers - 1, -1, -1)]
        replays = {f"F{i}" for i in range(self.num_layers)}
        odd = [run for run in self.backward if run[:1] != "B" and run not in replays]
        if done != wanted or odd or not done:
            raise InvalidScheduleError(
                f"{' '.join(odd or done) or 'nothing'} is no backward of {self.num_layers} layers",
                rule="stage plan",
                run_index=None,
                op_name=(odd or done or [""])[0],
                hint="each layer's B once, last layer first, with F of layers between them",
            )

    @property
    def num_layers(self) -> int:
        """Layers of the stage."""
        return sum(run[:1] == "B" for run in self.backward)

    @property
    def num_replays(self) -> int:
        """Number of forwards that run again."""
        return len(self.backward) - self.num_layers

    @property
    def replays(self) -> tuple[int, ...]:
        """The layers that run again, in run order, counted from the stage's first."""
        return tuple(int(run[1:]) for run in self.backward if run[0] == "F")

    @property
    def early_replays(self) -> tuple[int, ...]:
        """The replays before the first backward, which need no gradient to run."""
        first = self.backward.index(f"B{self.num_layers - 1}")
        return tuple(int(run[1:]) for run in self.backward[:first])

    def __repr__(self) -> str:
        return f"StagePlan({' '.join(self.backward)})"


def keep_all(num_layers: int) -> StagePlan:
    """The plan that recomputes nothing."""
    return StagePlan(tuple(f"B{i}" for i in range(num_layers - 1, -1, -1)))


def layer_inputs(num_layers: int) -> StagePlan:
    """Keep the input of every layer, and recompute every layer: full recomputation by layers."""
    runs = []
    for i in range(num_layers - 1, -1, -1):
        runs += [f"F{i}", f"B{i}"]
    return StagePlan(tuple(runs))


def stage_input(num_layers: int) -> StagePlan:
    """Keep only the input of the stage, and recompute the whole stage, as in GPipe."""
    return StagePlan((*(f"F{i}" for i in range(num_layers)), *keep_all(num_layers).backward))


RECOMPUTE = {"none": keep_all, "layers": layer_inputs, "stage": stage_input}
"""Fixed stage plans by name."""
