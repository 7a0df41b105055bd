"""The examples in the docstrings run, of modules imported by the name that users import them by.

Collected by path, the outer folders would be imported under other names, and numba would cache
their kernels under these, from which nobody can load them later.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil

import pytest

import schedsim

_PACKAGES = ["schedsim", "schedsim.algorithms", "schedsim.validation"]
# Needed to import some modules, whether or not they have examples.
_EXTRAS = {"schedsim.validation": "torch"}
_EXTRAS_OF_MODULES = {"schedsim.adjoint": "checkpoint_schedules", "schedsim.jax": "jax"}
# Importing these runs a program.
_PROGRAMS = {"schedsim.__main__"}


def _module_names() -> list[str]:
    """All modules of the three packages that can be imported here."""
    names = set()
    for package in _PACKAGES:
        needed = _EXTRAS.get(package)
        if needed is not None and importlib.util.find_spec(needed) is None:
            continue
        names.add(package)
        path = importlib.import_module(package).__path__
        names |= {found.name for found in pkgutil.walk_packages(path, f"{package}.")}
    lacking = {
        module
        for module, needed in _EXTRAS_OF_MODULES.items()
        if importlib.util.find_spec(needed) is None
    }
    return sorted(names - _PROGRAMS - lacking)


class _Finder(doctest.DocTestFinder):
    """Finds the examples of planners too, which are wrapped."""

    def _from_module(self, module, object):
        return super()._from_module(module, inspect.unwrap(object))


def examples_of(name: str) -> doctest.TestResults:
    """What the examples of the module give."""
    module, runner = importlib.import_module(name), doctest.DocTestRunner()
    for test in _Finder().find(module, name):
        runner.run(test)
    return doctest.TestResults(runner.failures, runner.tries)


@pytest.mark.parametrize("name", _module_names())
def test_examples(name):
    """What a docstring says comes out."""
    assert examples_of(name).failed == 0


def test_there_are_examples():
    """The walk reaches the public calls and the planners."""
    names = _module_names()
    assert {
        "schedsim.simulation.simulator",
        "schedsim.cli",
        "schedsim.algorithms.graphs.local_search",
    } <= set(names)
    assert examples_of("schedsim.algorithms.graphs.dtr").attempted > 0
    assert schedsim.__name__ in names
