"""The sessions of the backend of torch.compile: which steps a graph is a part of.

Graphs with one mapping of options are parts of the same steps. So are all graphs of a model that
FSDP2 shards, whatever was compiled: its blocks one by one, or the model itself; and those of code
around it, as a loss, with equal options. Dynamo may run a graph of one model for another of the
same class; the session is that of the model that runs.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from schedsim.errors import SchedsimError

from ..ranks import ranks_of
from ..torch_private.compiled_models import modules_given, options_given
from ..torch_private.graph_tasks import in_backward
from ..torch_private.module_tables import replacement_of
from ..torch_private.sharded_roots import (
    model_around,
    modules_of_roots,
    running_root,
    when_forward_begins,
)
from .beside.copied_models import COPIES
from .drop_in_options import DropInOptions
from .gathered_session import GatheredSession
from .local_session import LocalSession
from .session import Session

_MOST_SESSIONS = 64

Options = Mapping[str, Any]
Row = tuple[Any, Session]
"""What a user gave as options, and the session of steps with them."""


class BackendSessions:
    """The sessions of what was compiled for one backend.

    Parameters
    ----------
    backend
        The function that users name.

    Attributes
    ----------
    rows
        The id of a user's options -> these, which so are kept, and the session of models that no
        rank gathers.
    gathered
        The sessions of models that are sharded, with what their options mean.
    uncalled
        Those of the ids of which no graph has come.
    """

    def __init__(self, backend: Callable[..., Any]) -> None:
        self._backend = backend
        self.rows: OrderedDict[int, Row] = OrderedDict()
        self.gathered: list[tuple[DropInOptions, GatheredSession]] = []
        self.uncalled: set[int] = set()

    def of_present(self, options: Options | None) -> Session:
        """The session of what runs now, of which a graph has come with these options.

        Raises
        ------
        SchedsimError
            An option is invalid, or a sharded model has other options for other graphs.
        UnsupportedError
            A sharded model communicates otherwise, too.
        """
        root, given = running_root(), DropInOptions.read(options)
        if root is not None:
            return self._of_sharded(root, given)
        found = self._around_sharded(given)
        if found is not None:
            return found
        key = id(options)
        if key not in self.rows or key in self.uncalled:
            self._known(options)
            self.uncalled.discard(key)
            self._see_modules()
        return self._known(options)

    def of_call(self, options: Options | None, traced: Session) -> Session:
        """The session of a call of a graph with these options, which was `traced` for one."""
        root = running_root()
        if root is None and (not self.gathered or in_backward()):
            return traced  # in a backward, a block is computed again
        if isinstance(traced, GatheredSession):
            is_its = root is not None and traced.plans_for(root)
            return traced if is_its else self.of_present(options)
        given = DropInOptions.read(options)
        if root is not None:
            return self._of_sharded(root, given)
        return self._around_sharded(given) or traced

    def of(self, options: Options | None) -> Session:
        """The session of graphs with these options."""
        found = self._around_sharded(DropInOptions.read(options))
        return self.of_present(options) if found is None else found

    def for_model(self, model: Any) -> GatheredSession | None:
        """The session of a sharded `model`; ``None`` before a graph of it has come."""
        return next((it for _, it in self.gathered if it.plans_for(model)), None)

    def known(self, options: Options) -> Session | None:
        """The session of these options, if there is one."""
        root = running_root()
        if root is not None:
            return self.for_model(root)
        row = self.rows.get(id(options))
        return None if row is None else row[1]

    def around(self, options: Options) -> Session | None:
        """The session of a function of which no graph may have come yet."""
        if running_root() is not None:  # which says itself what it is given
            return None
        if id(options) not in self.rows:
            if not is_valid(options):  # which it raises when it is called
                return None
            self.uncalled.add(id(options))
        return self._known(options)

    def _known(self, options: Options | None) -> Session:
        key = id(options)
        if key not in self.rows:
            self._keep(options, LocalSession(DropInOptions.read(options)))
        return self.rows[key][1]

    def _keep(self, options: Options | None, session: Session) -> None:
        self.rows[id(options)] = (options, session)
        while len(self.rows) > _MOST_SESSIONS:
            oldest, _ = self.rows.popitem(last=False)
            self.uncalled.discard(oldest)

    # -- sharded models ---------------------------------------------------------------------------

    def _around_sharded(self, given: DropInOptions) -> GatheredSession | None:
        """The session of sharded models with these options: code around them is in their steps."""
        alike = (it for known, it in self.gathered if known == given)
        return next((it for it in alike if it.has_models), None)

    def _of_sharded(self, root: Any, given: DropInOptions) -> GatheredSession:
        for known, session in self.gathered:
            if session.plans_for(root):
                _refuse_others(root, known, given)
                return session
        model = model_around(root)
        _refuse_in_place(root, model)
        gc.collect()  # sharded models lie in circles of references
        self.gathered = [row for row in self.gathered if row[1].has_models]
        ranks = ranks_of(root)
        alike = (it for known, it in self.gathered if known == given and it.ranks.are(ranks))
        found = next(alike, None)
        if found is None:
            found = GatheredSession(given, ranks)
            self.gathered.append((given, found))
        found.takes(model)
        when_forward_begins(model, found.forward_of_root_begins)
        found.forward_of_root_begins((), is_whole=False)
        return found

    # -- modules that were given to torch.compile -------------------------------------------------

    def _see_modules(self) -> None:
        """Count what modules hold that have a budget, those that were not called yet among them.

        All of a module's parameters, where graphs have those alone that they read. What is called
        later is there from now on.
        """
        sharded = modules_of_roots()
        for options, module in modules_given(self._backend):
            if id(module) in sharded:
                continue
            is_new = id(options) not in self.rows
            try:
                session = self._known(options)
            except SchedsimError:  # which it raises when it is called
                continue
            if is_new:
                self.uncalled.add(id(options))
            session.see(module)
            COPIES.gets_budget(module)

    def is_coming(self) -> bool:
        """Whether a model was compiled with a budget, is there, and no graph of it has come."""
        if any(self.rows[key][1].has_model for key in self.uncalled):
            return True
        given = [it for it in options_given(self._backend) if id(it) not in self.rows]
        return any(is_valid(it) and not self._is_of_sharded(it) for it in given)

    def _is_of_sharded(self, options: Options) -> bool:
        wanted = DropInOptions.read(options)
        return any(known == wanted for known, _ in self.gathered)


def is_valid(options: Options) -> bool:
    """Whether a call with these options can ever come: it is refused where they are invalid."""
    try:
        DropInOptions.read(options)
    except SchedsimError:
        return False
    return True


def _refuse_in_place(*models: Any) -> None:
    for model in models:
        if isinstance(getattr(replacement_of(model), "session", None), Session):
            raise SchedsimError(
                f"{type(model).__name__} has a budget in place, which plans the graphs of its "
                "blocks, and these are compiled for the backend as well",
                hint="leave one of the two out: schedsim.restore(model), or block.compile(...)",
            )


def _refuse_others(root: Any, known: DropInOptions, given: DropInOptions) -> None:
    names = [it.name for it in fields(known) if getattr(known, it.name) != getattr(given, it.name)]
    if names:
        one, other = (
            ", ".join(f"{name}={getattr(it, name)!r}" for name in names) for it in (known, given)
        )
        raise SchedsimError(
            f"graphs of one sharded {type(root).__name__} are compiled with different options, "
            f"{one} and {other}: they are parts of the same steps",
            hint="give all of its blocks the same options",
        )
