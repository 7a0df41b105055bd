"""A command on the dry device: its environment, and how it is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import schedsim
from schedsim.errors import SchedsimError

from .built_library import Built, build
from .dry_devices import DryDevice
from .label import VARIABLE
from .wheels import find_wheels

_ROOT = Path(schedsim.__file__).resolve().parents[1]
RUNNER = "schedsim.validation.dry_cuda.values_run"
PLUGIN = "schedsim.validation.dry_cuda.values_run"


def environment_of(
    device: DryDevice,
    built: Built,
    environment: Mapping[str, str],
    *,
    values: bool = False,
    late_events: bool = False,
) -> dict[str, str]:
    """`environment` with the variables that put a process on the dry device.

    Parameters
    ----------
    values
        Whether ops compute, on the CPU and slowly; see `values`.
    late_events
        Whether an event is over only once the host has waited for it, as on a device that is far
        behind; if not, an event is over at once.
    """
    made = dict(environment)
    made.pop("CUDA_VISIBLE_DEVICES", None)  # it may hide every device
    preload = [str(built.library), str(built.nvml)]
    if environment.get("LD_PRELOAD"):
        preload.append(environment["LD_PRELOAD"])
    made |= device.settings()
    made |= {
        VARIABLE: device.key,
        "LD_PRELOAD": ":".join(preload),
        "SCHEDSIM_DRY_LATE_EVENTS": str(int(late_events)),
        "SCHEDSIM_DRY_VALUES": str(int(values)),
        # Triton links its driver against this; Inductor's workers would outlive the command.
        "TRITON_LIBCUDA_PATH": str(built.folder),
        "TORCHINDUCTOR_COMPILE_THREADS": environment.get("TORCHINDUCTOR_COMPILE_THREADS", "1"),
    }
    if values:
        made["SCHEDSIM_DRY_COPY"] = str(2**62)  # every copy is done
    if (_ROOT / "validation" / "__init__.py").is_file():  # a checkout, not an installed package
        paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
        made["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return made


def argv_of(command: Sequence[str], *, values: bool = False) -> list[str]:
    """The words to start `command` with: ``python`` and ``pytest`` are this interpreter's.

    Examples
    --------
    >>> import sys
    >>> argv_of(["python", "train.py"])[1:], argv_of(["pytest", "-x"])[1:]
    (['train.py'], ['-m', 'pytest', '-x'])
    """
    words = list(command)
    if words[0] == "pytest":
        plugin = ["-p", PLUGIN] if values else []
        return [sys.executable, "-m", "pytest", *plugin, *words[1:]]
    if words[0] in ("python", "python3"):
        words = words[1:]
    elif not words[0].endswith(".py"):
        if values:
            raise SchedsimError(
                f"--values is for Python, and {words[0]!r} is another program",
                hint="as in: --values -- python test.py, or --values -- pytest",
            )
        return words
    if not values:
        return [sys.executable, *words]
    if not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
        raise SchedsimError(
            f"--values does not take python {' '.join(words[:1])}".rstrip(),
            hint="a script, -m MODULE or -c CODE",
        )
    return [sys.executable, "-m", RUNNER, *words]


def start(
    command: Sequence[str],
    device: DryDevice,
    *,
    values: bool = False,
    late_events: bool = False,
) -> None:
    """Become `command`, on the dry device; does not return.

    Raises
    ------
    SchedsimError
        Something that the device needs is missing, or there is no such command.
    """
    built = build(find_wheels())
    made = environment_of(device, built, os.environ, values=values, late_events=late_events)
    words = argv_of(command, values=values)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(words[0], words, made)
