"""Workloads of other packages by name: options by the type of their default, faults in a line."""

from __future__ import annotations

import pytest
from four_stages import CHAIN

from schedsim.errors import SchedsimError
from schedsim.workloads import named


def toy(width: int = 3, share: float = 0.5, deep: bool = False, kind: str = "plain", *, seed=None):
    """A workload that says in its name what it was given."""
    from dataclasses import replace

    return replace(CHAIN, name=repr((width, share, deep, kind, seed)))


def failing(width: int = 3):
    if width < 2:
        raise SchedsimError("too narrow", hint="2 or more")
    raise ZeroDivisionError("division\nby zero")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Three packages: a good one, one that fails, one that gives no workload."""
    found = {"toy": toy, "failing": failing, "text": lambda: "chain", "number": 3}
    monkeypatch.setattr(named, "plugin_names", lambda group: sorted(found))
    monkeypatch.setattr(named, "load_plugin", lambda group, name, read: read(name, found[name]))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("workload:toy", (3, 0.5, False, "plain", None)),
        ("workload:toy,width=7,share=2", (7, 2.0, False, "plain", None)),
        ("workload:toy,deep=TRUE", (3, 0.5, True, "plain", None)),
        ("workload:toy,deep=0,kind=a=b", (3, 0.5, False, "a=b", None)),
        ("workload:toy,seed=x1", (3, 0.5, False, "plain", "x1")),
    ],
)
def test_options_have_the_type_of_their_default(text, made):
    """If the default has no type, the option stays a text."""
    assert named.is_named(text)
    assert named.named_workload(text).name == repr(made)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("workload:tyo", "unknown workload 'tyo'", "'toy'"),
        ("workload:zzz", "unknown workload 'zzz'", "failing"),
        ("workload:toy,width", "'width' is no OPTION=VALUE", "it takes width=3, share=0.5"),
        ("workload:toy,widht=3", "does not take widht", "did you mean width?"),
        ("workload:toy,width=3.5", "width=3.5 is not a whole number", "width=3"),
        ("workload:toy,share=half", "share=half is not a number", "share=0.5"),
        ("workload:toy,deep=yes", "deep=yes is not true or false", "deep=False"),
        ("workload:text,a=1", "does not take a", "it takes no options"),
        ("workload:text", "gave a str", "a Chain or Graph"),
        ("workload:number", "3 is no function that gives a workload", ""),
        ("workload:failing,width=1", "too narrow", "2 or more"),
        ("workload:failing", "cannot be made: ZeroDivisionError: division by zero", "package"),
    ],
)
def test_faults_are_one_line(text, says, hint):
    """With what it does take; an error of a stranger's code is not called one of ours."""
    with pytest.raises(SchedsimError) as caught:
        named.named_workload(text)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint


def test_where_no_package_brings_any(monkeypatch):
    """That is said, and no name is suggested."""
    monkeypatch.setattr(named, "plugin_names", lambda group: [])
    with pytest.raises(SchedsimError) as caught:
        named.named_workload("workload:toy")
    assert "no installed package brings any" in caught.value.hint
