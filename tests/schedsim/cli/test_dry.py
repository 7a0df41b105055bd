"""``--device dry:NAME``: the command is started over, once, and with what it was given."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import click
import pytest

from schedsim.cli.dry import on_device

A100 = SimpleNamespace(key="a100-80gb")


@pytest.fixture
def started(monkeypatch) -> list:
    """What is started; the process is on no dry device, and there is one of them."""
    calls: list = []
    here = {"name": None}
    top = ModuleType("schedsim.validation.dry_cuda")
    top.dry_device_name = lambda: here["name"]
    top.get_dry_device = {"a100-80gb": A100}.__getitem__
    launch = ModuleType("schedsim.validation.dry_cuda.launch")
    launch.start = lambda words, device: calls.append((words, device))
    monkeypatch.setitem(sys.modules, top.__name__, top)
    monkeypatch.setitem(sys.modules, launch.__name__, launch)
    calls.append(here)
    return calls


def in_command(name, arguments):
    """Ask for a device as a command within its group does."""
    with (
        click.Context(click.Group("schedsim"), obj=arguments) as group,
        click.Context(click.Command("plan"), parent=group),
    ):
        on_device(name)


@pytest.mark.parametrize("name", [None, "cpu", "cuda", "a100-80gb", "xdry:a100-80gb"])
def test_other_devices_start_nothing(started, name):
    """Nor do they import anything of models."""
    in_command(name, ["plan"])
    assert started[1:] == []


def test_the_command_is_started_over_with_its_own_words(started):
    """By this Python; on the dry device it goes on."""
    words = ["plan", "model:gpt2", "--mem", "1GB", "--device", "dry:a100-80gb"]
    in_command("dry:a100-80gb", words)
    assert started[1:] == [([sys.executable, "-m", "schedsim", *words], A100)]
    started[0]["name"] = "a100-80gb"
    in_command("dry:a100-80gb", words)
    assert len(started) == 2


def test_an_unknown_device_is_refused(started):
    """By the table of dry devices."""
    with pytest.raises(KeyError, match="tpu"):
        in_command("dry:tpu", ["plan"])
