"""The library, built once per set of wheels, compiler flags and sources."""

from __future__ import annotations

import subprocess
import sys

import pytest
from schedsim.validation.dry_cuda.built_library import source_files


def test_the_c_files_of_no_header_compile():
    """Those that need nothing of CUDA, with any gcc."""
    import shutil

    gcc = shutil.which("gcc")
    if gcc is None or sys.platform != "linux":
        pytest.skip("gcc is not here, or this is not Linux")
    for file in source_files():
        if any(name in file.read_text() for name in ("<cuda", "<cublas", "<cudnn")):
            continue
        done = subprocess.run(
            [gcc, "-std=gnu11", "-Wall", "-Wno-unused-parameter", "-fsyntax-only", str(file)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == "", file.name
