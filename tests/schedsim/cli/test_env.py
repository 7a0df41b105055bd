"""``schedsim env``: versions and machine, whatever the system does not say."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re

import pytest

from schedsim.cli import env


def test_facts_as_text_and_as_a_document(call):
    """The same in both; versions are those that are installed."""
    code, out, err = call("env --json")
    document = json.loads(out)
    assert (code, err, document.pop("schema")) == (0, "", "schedsim.env/1")
    text = dict(re.split(r" {2,}", line, maxsplit=1) for line in call("env")[1].splitlines())
    assert text == document
    assert document["numpy"] == importlib.metadata.version("numpy")
    assert document["cores"] == str(os.cpu_count())
    assert re.fullmatch(r"[\d.]+ [GT]B \([\d.]+ [GT]iB\)", document["memory"])


def test_what_is_not_installed_is_said(call, monkeypatch):
    """And whether it has to be."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    document = json.loads(call("env --json")[1])
    assert document["numpy"] == "not installed"
    assert document["torch"] == "not installed (optional)"


@pytest.mark.parametrize("error", [AttributeError, ValueError, OSError])
def test_a_system_that_does_not_tell_its_memory(monkeypatch, error):
    """Some have no sysconf, some not these names."""

    def silent(name):
        raise error

    monkeypatch.setattr(os, "sysconf", silent, raising=False)
    assert env._memory() == "unknown"
