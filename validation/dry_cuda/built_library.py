"""The library, built once per set of wheels, compiler flags and sources."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from schedsim.errors import SchedsimError

from .cache_folder import cache_folder
from .stubs import defined, stub_source, undefined_calls
from .wheels import Wheels

SOURCES = Path(__file__).parent / "src"
OWN_LIBRARY = ("nvml.c",)
FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter")


@dataclass(frozen=True)
class Built:
    """The built libraries, to be preloaded.

    Attributes
    ----------
    library
        Stands for the CUDA runtime, driver, cuBLAS and cuDNN. Its SONAME is libcuda.so.1, so that
        code that asks for the driver finds it loaded already.
    nvml
        Stands for NVML.
    folder
        Holds both, and for linkers also links named libcuda.so and libcuda.so.1.
    """

    library: Path
    nvml: Path
    folder: Path


def source_files() -> list[Path]:
    """The C files, by name."""
    return sorted(SOURCES.glob("*.c"))


def build(wheels: Wheels) -> Built:
    """Build the library, or find it built.

    Raises
    ------
    SchedsimError
        The compiler fails; the message has its first error.
    """
    folder = cache_folder() / "dry-cuda" / _digest(wheels)
    if not (folder / "built").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            _build_in(work, wheels)
            (work / "built").touch()
            try:
                os.replace(work, folder)
            except OSError:  # another process was first
                if not (folder / "built").is_file():
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Built(folder / "libdrycuda.so", folder / "libnvidia-ml.so.1", folder)


def _digest(wheels: Wheels) -> str:
    parts = [json.dumps(wheels.versions, sort_keys=True), str(wheels.torch_libraries), *FLAGS]
    parts += [file.read_text() for file in (*source_files(), *sorted(SOURCES.glob("*.h")))]
    parts.append((Path(__file__).parent / "stubs.py").read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build_in(folder: Path, wheels: Wheels) -> None:
    includes = [f"-I{path}" for path in (*wheels.includes, SOURCES)]
    objects = []
    for source in source_files():
        if source.name not in OWN_LIBRARY:
            objects.append(folder / f"{source.stem}.o")
            _run([wheels.gcc, *FLAGS, *includes, "-c", str(source), "-o", str(objects[-1])])
    wanted = undefined_calls(sorted(wheels.torch_libraries.glob("lib*.so")), wheels.nm)
    stubs = folder / "stubs.c"
    stubs.write_text(stub_source(wanted - defined(objects, wheels.nm)))
    objects.append(folder / "stubs.o")
    _run([wheels.gcc, *FLAGS, *includes, "-c", str(stubs), "-o", str(objects[-1])])
    _run(
        [
            wheels.gcc,
            "-shared",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            str(folder / "libdrycuda.so"),
            *map(str, objects),
            "-lpthread",
            "-ldl",
        ]
    )
    _run(
        [
            wheels.gcc,
            *FLAGS,
            "-shared",
            "-Wl,-soname,libnvidia-ml.so.1",
            "-o",
            str(folder / "libnvidia-ml.so.1"),
            str(SOURCES / "nvml.c"),
        ]
    )
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / name).symlink_to("libdrycuda.so")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise SchedsimError(
            f"the dry CUDA device does not build: {' '.join(lines[0].split())[:300]}",
            hint="it is written for CUDA 13 and torch 2.15.0: see docs/dry-cuda.md",
        )
