"""The Python state that a step can read, recorded: it is compared, differences named, restored.

Everything that can be reached from the model, the loss and the globals that their code reads is
walked once: attributes of modules and of plain objects, items of containers, hooks, closures,
defaults of functions, attributes of classes, generators and NumPy arrays. What a place holds is
compared by identity, except numbers and strings, which are compared by value. Tensors are compared
by identity and form, because the graph reads their content when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .reach import Reach
from .state_change import StateChange
from .state_walk import StateWalk, form_of
from .watched_places import NamedPlaces, Place, Places, SomeNames, filled


class StateSnapshot:
    """The state reachable from `roots` now.

    Parameters
    ----------
    roots
        Objects to start from, by the name under which changes are reported.
    reach
        Names that the code can look up; without it, everything counts.
    skip
        Tables of modules to leave out, such as ``_buffers``.

    Raises
    ------
    UnsupportedError
        More places are reachable than can be watched.

    Notes
    -----
    O(places reachable), for a comparison too: some milliseconds for a thousand modules.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Dropout(0.5)
    >>> before = StateSnapshot({"model": model})
    >>> model.p = 0.1
    >>> print(before.change())
    model.p is 0.1 instead of 0.5
    >>> before.restore()
    >>> model.p
    0.5
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        reach: Reach | None = None,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        self.roots = {path: root for path, root in roots.items() if root is not None}
        self.reach = reach or Reach()
        self.skip = skip
        walk = StateWalk(self.reach.names, skip)
        for path, root in self.roots.items():
            walk.pending.append((path, root))
        walk.run()
        for scope, names in self.reach.scopes:
            walk.scope(scope, names)
        walk.environment(self.reach.variables)
        walk.run()
        self._places, self._empty, self.iterators = walk.places, walk.empty, walk.iterators
        self._generators, self._torch_generators = walk.generators, walk.torch_generators
        self.tensors = {path: tensor for path, tensor, _ in walk.tensors}
        self._tensors = walk.tensors
        self._seen = walk.seen  # kept alive, so that no other object gets the same identity

    @property
    def num_places(self) -> int:
        """Number of containers and other places that are compared."""
        return len(self._places) + len(self._empty)

    def change(self) -> StateChange | None:
        """The first place whose content has changed; ``None`` where nothing has."""
        for path, container, owner in self._empty:
            if container:
                return StateChange(path, "empty", f"{len(container)} items", owner)
        for place in self._places:
            for change in place.changes():
                return change
        for path, tensor, form in self._tensors:
            if form_of(tensor) != form:
                return StateChange(path, form, form_of(tensor), tensor)
        return None

    def changes(self) -> list[StateChange]:
        """All places whose content has changed."""
        found = [
            StateChange(path, "empty", f"{len(container)} items", owner)
            for path, container, owner in self._empty
            if container
        ]
        for place in self._places:
            found += place.changes()
        return found

    def draws(self) -> list[str]:
        """The generators that have advanced. Other code may draw from them between steps."""
        return [place.path for place in self._generators if next(iter(place.changes()), None)]

    def restore_generators(self) -> None:
        """Set all generators that the step holds itself back."""
        for place in [*self._generators, *self._torch_generators]:
            place.restore()

    def torch_generators(self) -> list[tuple[str, Tensor]]:
        """The present states of torch's generators that the step holds itself, by place."""
        return [(place.path, place.read()) for place in self._torch_generators]

    def again(self) -> StateSnapshot:
        """A snapshot of the same roots as they are now: this one, where all is as it was."""
        return self if self._is_current() else self.of({})

    def of(self, roots: Mapping[str, Any]) -> StateSnapshot:
        """A snapshot of the present state, in which `roots` replace those of the same names."""
        return StateSnapshot({**self.roots, **roots}, self.reach, self.skip)

    def _is_current(self) -> bool:
        """Whether another walk would find the same, down to what no step reads."""
        places = [*self._places, *self._generators, *self._torch_generators]
        return (
            not any(container for _, container, _ in self._empty)
            and all(place.is_as_saved() for place in places)
            and all(form_of(tensor) == form for _, tensor, form in self._tensors)
        )

    def restore(self) -> None:
        """Restore all places; tensors keep their content."""
        for _, container, _ in self._empty:
            if container:
                container.clear()
        for place in [*self._places, *self._generators, *self._torch_generators]:
            place.restore()

    def changed(self) -> Places:
        """The places whose content has changed, to be restored any number of times."""
        found: list[Place] = []
        for place in self._places:
            if isinstance(place, NamedPlaces):
                if keys := place.changed_keys():
                    found.append(SomeNames(place.path, place.owner, place, keys))
            elif next(iter(place.changes()), None):
                found.append(place)
        for path, container, owner in self._empty:
            if container and isinstance(container, dict):
                found.append(filled(path, container, owner))
        return Places(tuple(found))
