"""The CUDA wheels that are installed: their headers, and what PyTorch links of them."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from schedsim.errors import MissingDependencyError, UnsupportedError

TORCH_VERSION = "2.15.0"
"""The version that the library was written against, and its calibration was made with."""

_INSTALL = f"in an environment of its own: pip install torch=={TORCH_VERSION} (CUDA build, 6 GB)"
_PACKAGES = (
    *("torch", "triton", "nvidia-cuda-runtime", "nvidia-cublas", "nvidia-cudnn-cu13"),
    *("nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12", "nvidia-cudnn-cu12"),
)
_HEADERS = {
    # CUDA -> folders of packages, each with a header that lies there
    13: (("nvidia", "cu13/include", "cuda_runtime_api.h"),),
    12: (
        ("nvidia", "cuda_runtime/include", "cuda_runtime_api.h"),
        ("nvidia", "cublas/include", "cublas_v2.h"),
    ),
}
_HEADERS_OF_BOTH = (
    ("nvidia", "cudnn/include", "cudnn.h"),
    ("triton", "backends/nvidia/include", "crt/host_defines.h"),
)
_WITHOUT_CCCL = Path(__file__).parent / "src" / "cuda12"
"""What headers include and the wheels of CUDA 12, and of the first CUDA 13, lack."""


@dataclass(frozen=True)
class Wheels:
    """Where the headers, libraries and programs lie.

    Attributes
    ----------
    torch_libraries
        Folder of PyTorch's shared libraries.
    includes
        Folders of headers: CUDA's, cuDNN's, and those of the compiler's part that Triton brings.
    gcc, nm
        Programs.
    versions
        Versions of the packages that the library is built against.
    """

    torch_libraries: Path
    includes: tuple[Path, ...]
    gcc: str
    nm: str
    versions: dict[str, str]


def find_wheels(path: list[str] | None = None) -> Wheels:
    """The wheels on `path`, by default this interpreter's; nothing is imported.

    Raises
    ------
    UnsupportedError
        This is not Linux.
    MissingDependencyError
        PyTorch's CUDA build, a header or a compiler is missing; the hint says how to get it.
    """
    if sys.platform != "linux":
        raise UnsupportedError(
            f"the dry CUDA device preloads a library, which is for Linux, not {sys.platform}",
            hint="run it in a Linux container",
        )
    torch = _folder("torch", path)
    if torch is None:
        raise MissingDependencyError(
            "the dry CUDA device needs PyTorch's CUDA build", hint=_INSTALL
        )
    if not (torch / "lib" / "libtorch_cuda.so").is_file():
        raise MissingDependencyError(
            f"the PyTorch in {torch} is no CUDA build{_said(torch)}", hint=_INSTALL
        )
    cuda = _cuda_of(_folder("nvidia", path))
    includes = tuple(_header(path, cuda, *place) for place in (*_HEADERS[cuda], *_HEADERS_OF_BOTH))
    if not any((folder / "nv" / "target").is_file() for folder in includes):
        includes += (_WITHOUT_CCCL,)
    return Wheels(torch / "lib", includes, _program("gcc"), _program("nm"), _versions())


def _cuda_of(nvidia: Path | None) -> int:
    """12 for the wheels of CUDA 12 alone, which have a folder for each part."""
    if nvidia is None or (nvidia / "cu13").is_dir():
        return 13
    return 12 if (nvidia / "cuda_runtime").is_dir() else 13


def _folder(package: str, path: list[str] | None) -> Path | None:
    """The folder of `package`; found as an import would, without importing anything."""
    spec = PathFinder.find_spec(package, path)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _said(torch: Path) -> str:
    """The version that a folder of PyTorch names."""
    try:
        text = (torch / "version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    return f" ({found[1]})" if found else ""


def _header(path: list[str] | None, cuda: int, package: str, below: str, header: str) -> Path:
    folder = _folder(package, path)
    if folder is None or not (folder / below / header).is_file():
        raise MissingDependencyError(
            f"the header {header} of CUDA {cuda} is not installed ({package}/{below})",
            hint=_INSTALL,
        )
    return folder / below


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingDependencyError(
            f"the dry CUDA device is built with {name}, which is not here",
            hint="install gcc and binutils, as in: apt install gcc binutils",
        )
    return found


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
