"""The CUDA wheels that are installed: their headers, and what PyTorch links of them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from schedsim.validation.dry_cuda.built_library import source_files
from schedsim.validation.dry_cuda.wheels import find_wheels

from schedsim.errors import MissingDependencyError, SchedsimError

TORCH = ["torch/lib/libtorch_cuda.so", "triton/backends/nvidia/include/crt/host_defines.h"]
CUDA_12 = [
    "nvidia/cuda_runtime/include/cuda_runtime_api.h",
    "nvidia/cublas/include/cublas_v2.h",
    "nvidia/cudnn/include/cudnn.h",
]
CUDA_13_TARGET = "nvidia/cu13/include/nv/target"
CUDA_13 = ["nvidia/cu13/include/cuda_runtime_api.h", "nvidia/cudnn/include/cudnn.h"]


def installed(folder, files):
    """A search path with packages that hold `files`."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
        package = folder / name.split("/")[0]
        (package / "__init__.py").touch()
    return [str(folder)]


@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("nm")), reason="no gcc or no nm")
@pytest.mark.parametrize(
    ("files", "cuda"),
    [(CUDA_12, 12), (CUDA_13, 13), ([*CUDA_13, CUDA_13_TARGET], 13), (CUDA_12 + CUDA_13, 13)],
    ids=str,
)
def test_headers_are_those_of_the_wheels_for_cuda(tmp_path, files, cuda):
    """CUDA 12 has a folder for each part, and lacks a file that its headers include.

    So do the wheels of CUDA 13 for torch 2.11.
    """
    wheels = find_wheels(installed(tmp_path, TORCH + files))
    folders = [
        str(path.relative_to(tmp_path)) for path in wheels.includes if tmp_path in path.parents
    ]
    assert ("nvidia/cu13/include" in folders) == (cuda == 13)
    assert ("nvidia/cublas/include" in folders) == (cuda == 12)
    targets = [path for path in wheels.includes if (path / "nv" / "target").is_file()]
    assert len(targets) == 1
    assert (tmp_path in targets[0].parents) == (CUDA_13_TARGET in files)


def test_a_missing_header_is_named(tmp_path):
    """With its CUDA."""
    path = installed(tmp_path, [*TORCH, *CUDA_12[:1], CUDA_12[2]])
    with pytest.raises(MissingDependencyError, match=r"header cublas_v2.h of CUDA 12"):
        find_wheels(path)


@pytest.mark.parametrize("file", source_files(), ids=lambda p: p.name)
def test_the_c_files_compile(file):
    """Without a warning, where gcc and the headers of CUDA are."""
    try:
        wheels = find_wheels()
    except SchedsimError as error:
        pytest.skip(error.message)
    includes = [f"-I{path}" for path in (*wheels.includes, file.parent)]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    done = subprocess.run(
        [wheels.gcc, *flags, *includes, "-fsyntax-only", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
