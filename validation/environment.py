"""The machine and the versions that a measurement belongs to."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from schedsim.errors import SchedsimError

from .dry_cuda import LABEL, PREFIX, dry_device_name, get_dry_device, is_dry


def default_device() -> str:
    """``"cuda"`` if the machine has a CUDA device, else ``"cpu"``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_device(name: str | None) -> str:
    """`name`, or the default device for ``None``.

    Raises
    ------
    SchedsimError
        `name` is neither cpu nor cuda nor the dry device of this process, or is not available.
    """
    if name is None:
        return default_device()
    if name.startswith(PREFIX):
        return _dry(name.removeprefix(PREFIX))
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise SchedsimError(f"--device {name!r} is not cpu or cuda", hint="models are run on these")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SchedsimError("there is no CUDA device here", hint="use --device cpu")
    return name


def _dry(key: str) -> str:
    """``"cuda"`` if this process runs on the dry device called `key`."""
    get_dry_device(key)
    if dry_device_name() != key:
        raise SchedsimError(
            f"this process is not on the dry device {key}",
            hint=f"python -m schedsim.validation.dry_cuda --device {key} -- COMMAND",
        )
    return "cuda"


def device_name(device: str | torch.device) -> str:
    """The product name of the device, as far as the system states it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def device_memory_bytes(device: str | torch.device) -> int:
    """All memory of the device, in bytes."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30


def environment(device: str | torch.device) -> dict[str, str]:
    """The environment that a measured time depends on: device, versions, threads."""
    facts = {
        "device": torch.device(device).type,
        "device_name": device_name(device),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.device(device).type == "cuda":
        facts["cuda"] = str(torch.version.cuda)
        if is_dry():
            facts["dry"] = LABEL
    for package in ("schedsim", "transformers"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts
