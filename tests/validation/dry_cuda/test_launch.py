"""The launcher of the dry CUDA device: what it refuses, and the environment that it makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from schedsim.validation.dry_cuda import DEVICES, LABEL, get_dry_device
from schedsim.validation.dry_cuda.__main__ import run
from schedsim.validation.dry_cuda.built_library import Built
from schedsim.validation.dry_cuda.launch import argv_of, environment_of
from schedsim.validation.dry_cuda.wheels import find_wheels

from schedsim.errors import MissingDependencyError, SchedsimError, UnsupportedError
from schedsim.workloads.devices import DEVICES as ROOFLINES

BUILT = Built(Path("/b/libdrycuda.so"), Path("/b/libnvidia-ml.so.1"), Path("/b"))


def cuda_build(folder: Path) -> list[str]:
    """A path on which the files of PyTorch's CUDA build seem to lie."""
    for file in (
        "torch/__init__.py",
        "torch/lib/libtorch_cuda.so",
        "nvidia/cu13/include/cuda_runtime_api.h",
        "nvidia/cu13/include/nv/target",
        "nvidia/cudnn/include/cudnn.h",
        "triton/__init__.py",
        "triton/backends/nvidia/include/crt/host_defines.h",
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return [str(folder)]


def test_wheels_are_found_without_importing_them(tmp_path, monkeypatch):
    """Headers and libraries by their places; the modules are empty files."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    wheels = find_wheels(cuda_build(tmp_path))
    assert wheels.torch_libraries == tmp_path / "torch" / "lib"
    assert [path.name for path in wheels.includes] == ["include"] * 3


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("torch/__init__.py", "needs PyTorch's CUDA build"),
        ("torch/lib/libtorch_cuda.so", "is no CUDA build (2.13.0+cpu)"),
        ("nvidia/cu13/include/cuda_runtime_api.h", "cuda_runtime_api.h"),
        ("nvidia/cudnn/include/cudnn.h", "cudnn.h"),
        ("triton/backends/nvidia/include/crt/host_defines.h", "host_defines.h"),
    ],
)
def test_what_is_missing_is_named(missing, says, tmp_path, monkeypatch):
    """One line with a hint that says what to install."""
    monkeypatch.setattr(sys, "platform", "linux")
    path = cuda_build(tmp_path)
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\n")
    (tmp_path / missing).unlink()
    if missing == "torch/__init__.py":
        path = [str(tmp_path / "nowhere")]
    with pytest.raises(MissingDependencyError) as caught:
        find_wheels(path)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert "pip install torch==2.15.0" in caught.value.hint


def test_a_compiler_and_linux_are_needed(tmp_path, monkeypatch):
    """Each refusal says which."""
    path = cuda_build(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedError, match="for Linux, not darwin"):
        find_wheels(path)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingDependencyError, match="built with gcc, which is not here"):
        find_wheels(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "there is no command to run"),
        (["--device", "a100", "--", "python"], "no dry device 'a100'"),
        (["--memory", "40G", "--", "python"], "40G"),
        (["--values", "--", "ls"], "--values is for Python"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, says, capsys, monkeypatch):
    """Exit code 2, an error line and a hint, no traceback."""
    from schedsim.validation.dry_cuda import launch

    monkeypatch.setattr(launch, "find_wheels", lambda: None)
    monkeypatch.setattr(launch, "build", lambda wheels: BUILT)
    assert run(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
    assert says in lines[0]


def test_python_and_pytest_are_this_interpreters():
    """Also with values, which another program cannot have."""
    assert argv_of(["python", "a.py", "-x"]) == [sys.executable, "a.py", "-x"]
    assert argv_of(["a.py"]) == [sys.executable, "a.py"]
    assert argv_of(["torchrun", "a.py"]) == ["torchrun", "a.py"]
    assert argv_of(["python", "-c", "1"], values=True)[1:4] == [
        "-m",
        "schedsim.validation.dry_cuda.values_run",
        "-c",
    ]
    assert "-p" in argv_of(["pytest"], values=True)
    with pytest.raises(SchedsimError):
        argv_of(["python", "-X", "dev", "a.py"], values=True)


def test_the_environment_puts_a_process_on_the_device():
    """The library first, what was preloaded after it, no hidden devices, the device's numbers."""
    given = {"LD_PRELOAD": "/x.so", "CUDA_VISIBLE_DEVICES": "", "HOME": "/h"}
    device = get_dry_device("rtx4090").with_memory(10**10)
    made = environment_of(device, BUILT, given, late_events=True)
    assert made["LD_PRELOAD"] == "/b/libdrycuda.so:/b/libnvidia-ml.so.1:/x.so"
    assert "CUDA_VISIBLE_DEVICES" not in made
    assert (made["HOME"], made["SCHEDSIM_DRY_CUDA"]) == ("/h", "rtx4090")
    assert (made["SCHEDSIM_DRY_MEMORY"], made["SCHEDSIM_DRY_LATE_EVENTS"]) == ("10000000000", "1")
    assert given["CUDA_VISIBLE_DEVICES"] == ""


def test_every_device_has_a_roofline_and_less_memory_than_is_sold():
    """Drivers keep a part: what a device reports lies within a tenth below its data sheet's GiB."""
    for key, device in DEVICES.items():
        assert device.key == key
        sold = ROOFLINES[device.roofline].memory_bytes / 1e9 * 2**30
        assert 0.9 * sold < device.memory_bytes <= sold


def test_the_label_says_what_the_numbers_are():
    """No times, no kernels."""
    assert LABEL == "PyTorch's own CUDA allocator and code; kernels not run; no times"


RECORDED_STREAM = """
import torch
MIB = 2**20
side = torch.cuda.Stream()
block = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
with torch.cuda.stream(side):
    block.add_(1)
block.record_stream(side)
del block
reserved = [torch.cuda.memory_reserved() // MIB]
first = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
reserved.append(torch.cuda.memory_reserved() // MIB)
torch.cuda.synchronize()
second = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
reserved.append(torch.cuda.memory_reserved() // MIB)
print(reserved)
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("options", "reserved"), [([], [64, 64, 128]), (["--late-events"], [64, 128, 128])]
)
def test_late_events_hold_a_recorded_block(options, reserved):
    """By hand: 64 MiB each. A block used on a side stream waits for its event, late or not."""
    try:
        find_wheels()
    except SchedsimError as error:
        pytest.skip(error.message)
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD",)}
    command = [sys.executable, "-m", "schedsim.validation.dry_cuda", "--device", "a100-80gb"]
    ran = subprocess.run(
        [*command, *options, "--", "python", "-c", RECORDED_STREAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split("\n")[0] == str(reserved)
