"""The CUDA wheels that are installed: their headers, and what PyTorch links of them."""

from __future__ import annotations

import subprocess

import pytest
from schedsim.validation.dry_cuda.built_library import source_files
from schedsim.validation.dry_cuda.wheels import find_wheels

from schedsim.errors import SchedsimError


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
