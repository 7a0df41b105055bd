"""``--device dry:NAME``: refusals, labels, and times by the data sheet."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation import environment  # noqa: E402
from schedsim.validation.block_level import repeated_forward  # noqa: E402
from schedsim.validation.costs.roofline_clock import RooflineClock  # noqa: E402
from schedsim.validation.dry_cuda import LABEL, has_times, has_values  # noqa: E402

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


def test_another_process_is_not_on_the_device():
    """In Python, nothing starts over."""
    with pytest.raises(SchedsimError) as caught:
        environment.check_device("dry:h200")
    assert "--device h200 -- COMMAND" in caught.value.hint


def test_on_the_device_its_name_is_cuda(monkeypatch):
    """And only its own: another dry device is refused."""
    monkeypatch.setenv("SCHEDSIM_DRY_CUDA", "h200")
    assert environment.check_device("dry:h200") == "cuda"
    with pytest.raises(SchedsimError):
        environment.check_device("dry:a100-80gb")


def test_what_the_dry_device_has(monkeypatch):
    """No times ever, values where they were asked for; the CPU has both."""
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert has_times(cuda)
    assert has_values(cuda)
    monkeypatch.setenv("SCHEDSIM_DRY_CUDA", "h200")
    assert (has_times(cuda), has_times(cpu), has_values(cuda)) == (False, True, False)
    monkeypatch.setenv("SCHEDSIM_DRY_VALUES", "1")
    assert has_values(cuda)
    assert not has_times(cuda)


def test_values_that_are_not_there_are_not_compared(monkeypatch):
    """Shapes still are."""
    monkeypatch.setattr(repeated_forward, "has_values", lambda device: False)
    zeros, ones = torch.zeros(3), torch.ones(3)
    assert repeated_forward.same_values(zeros, ones)
    assert repeated_forward.nearly_equal(zeros, ones)
    assert not repeated_forward.same_values(zeros, torch.ones(4))


def test_the_environment_is_labelled(monkeypatch):
    """Every result that comes from the device says so."""
    monkeypatch.setenv("SCHEDSIM_DRY_CUDA", "h200")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "dry NVIDIA H200")
    assert environment.environment("cuda")["dry"] == LABEL
    assert "dry" not in environment.environment("cpu")


def test_the_roofline_clock_adds_up_ops():
    """A product by its arithmetic, a sum by its traffic, a view by nothing.

    512 x 512 x 512 x 2 flops at 19.5 Tflop/s are 13.77 us (its traffic, 3 MiB at 2039 GB/s, 1.54);
    x + x reads 1 MiB and writes 1 MiB: 2^21 / 2039e9 = 1.03 us.
    """
    x = torch.ones(512, 512)
    with RooflineClock("a100-80gb") as clock:
        x.t()
        assert clock.elapsed_s == 0
        x @ x
        assert clock.elapsed_s == pytest.approx(2 * 512**3 / 19.5e12)
        before = clock.elapsed_s
        x + x
    assert clock.elapsed_s - before == pytest.approx(2 * 2**20 / 2039e9)
