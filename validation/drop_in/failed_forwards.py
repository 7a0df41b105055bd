"""Forwards that raise: what the plain step leaves behind then, is left behind here.

A loop may catch an error and go on with the next batch. By then the plain step has moved the batch
statistics in front of the place that raised, has drawn, and has set attributes; a graph changes
buffers when all of it has run.
"""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from schedsim.errors import SchedsimError

from ..block_level.repeated_forward import RandomState
from ..guards.numpy_state import NumpyState
from ..guards.recording import restore_python_generators
from ..guards.saved_elsewhere import saved_elsewhere
from ..torch_private.autocast_casts import remembered_cast
from ..torch_private.checkpoint_frames import ends_recomputation
from ..torch_private.pytrees import tree_leaves
from .tracing import begins_call

if TYPE_CHECKING:
    from .session import Session

Call = Callable[..., Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})


class FailedForwards:
    """What Dynamo calls for one graph: where it raises, the graph runs as it is up to there.

    Parameters
    ----------
    call
        What runs the graph by its schedules.
    plain
        The graph as it is.
    changes
        Whether the code that was traced changes what Python holds, behind the graph.
    """

    def __init__(self, session: Session, call: Call, plain: Call, *, changes: bool) -> None:
        self._session, self._call, self._plain = session, call, plain
        self._changes = changes
        self._devices: tuple[str, ...] = ()  # of the arguments, once it was called

    def __call__(self, *arguments: Any) -> Any:
        """Call the graph."""
        session = self._session
        if session.is_rehearsing:  # which puts all back
            return self._call(*arguments)
        # Tensors on another device would be another graph.
        self._devices = self._devices or _devices_of(arguments)
        session.cast = remembered_cast(self._devices[-1].partition(":")[0])
        before = RandomState.now(self._devices)
        try:
            return self._call(*arguments)
        except SchedsimError:  # it is refused, and has not run
            raise
        except torch.OutOfMemoryError:
            session.say_undone("ran out of memory, and all that it had changed is as before it")
            raise
        except Exception as error:
            if ends_recomputation(error):
                raise
            if session.sends:  # other ranks would have to run it again, too
                session.say_undone("raised, and all that it had changed is as before it")
                raise
            session.is_undone = session.calls_again and _is_first_of_call()
            if not session.is_undone:
                before.restore()
                run_up_to(error, self._plain, arguments)
                if self._changes:
                    session.say_undone("raised, and what it had set in Python is as before it")
            raise


def _devices_of(arguments: Sequence[Any]) -> tuple[str, ...]:
    found = {str(t.device) for t in arguments if isinstance(t, torch.Tensor) and t.is_cuda}
    return ("cpu", *sorted(found))


class GeneratorsBefore:
    """The generators of torch, Python and NumPy, as each forward of a model begins."""

    def __init__(self) -> None:
        self._numpy = NumpyState()

    def now(self, devices: Iterable[str]) -> Callable[[], None]:
        """What sets them back to their present states.

        Parameters
        ----------
        devices
            Where the model draws, besides the CPU.
        """
        of_torch = RandomState.now(("cpu", *(it for it in devices if it != "cpu")))
        of_python, of_numpy = random.getstate(), self._numpy.now()

        def restore() -> None:
            of_torch.restore()
            restore_python_generators((of_python, of_numpy))

        return restore


def run_up_to(
    error: Exception, plain: Call, inputs: Sequence[Any], keywords: Mapping[str, Any] = NOTHING
) -> Exception | None:
    """Run `plain` up to where it raises; what it raises.

    It takes no more memory than a forward without gradients.

    Parameters
    ----------
    error
        What the call by schedules raised, whose frames hold what that had made.
    """
    traceback.clear_frames(error.__traceback__)
    given = [t for t in tree_leaves((inputs, dict(keywords))) if isinstance(t, torch.Tensor)]
    with saved_elsewhere(given):
        try:
            plain(*inputs, **keywords)
        except Exception as found:
            return found
    return None


def _is_first_of_call() -> bool:
    """Whether no code of the model has run in this call: its first graph is the one that runs."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if begins_call(frame.f_code):
            return True
        if not name.startswith(("torch._", "schedsim.")):
            return False
        frame = frame.f_back
    return False
