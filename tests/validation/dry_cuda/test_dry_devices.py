"""``--device dry:NAME``: refusals, labels, and times by the data sheet."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation import environment  # noqa: E402
from schedsim.validation.block_level import repeated_forward  # noqa: E402

from schedsim.cli.app import run  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402

COMMANDS = (
    ["plan", "model:mlp", "--mem", "1GB"],
    ["validate", "model:mlp"],
    ["profile", "model:mlp"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("device", "says"),
    [("dry:a100-80gb", "needs PyTorch's CUDA build"), ("dry:h20", "no dry device 'h20'")],
)
def test_commands_refuse_a_dry_device_that_cannot_be(words, device, says, capsys, monkeypatch):
    """Exit code 2, one error and one hint."""
    from schedsim.validation.dry_cuda import wheels

    monkeypatch.setattr(wheels, "_folder", lambda package, path: None)
    assert run([*words, "--device", device]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
    assert says in lines[0]


def test_a_command_starts_over_on_the_device(monkeypatch):
    """With the same words, the device's name among them."""
    from schedsim.validation.dry_cuda import launch

    started = []

    def start(command, device):
        started.append((command[2:], device.key))
        raise SchedsimError("started")

    monkeypatch.setattr(launch, "start", start)
    words = ["validate", "model:mlp", "--device", "dry:h200"]
    assert run(words) == 2
    assert started == [(["schedsim", *words], "h200")]


def test_on_the_device_its_name_is_cuda(monkeypatch):
    """And only its own: another dry device is refused."""
    monkeypatch.setenv("SCHEDSIM_DRY_CUDA", "h200")
    assert environment.resolve_device("dry:h200") == "cuda"
    with pytest.raises(SchedsimError):
        environment.resolve_device("dry:a100-80gb")


def test_values_that_are_not_there_are_not_compared(monkeypatch):
    """Shapes still are."""
    monkeypatch.setattr(repeated_forward, "has_values", lambda device: False)
    zeros, ones = torch.zeros(3), torch.ones(3)
    assert repeated_forward.same_values(zeros, ones)
    assert repeated_forward.nearly_equal(zeros, ones)
    assert not repeated_forward.same_values(zeros, torch.ones(4))
