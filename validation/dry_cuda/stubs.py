"""A function for every CUDA call that PyTorch links and the library does not model: it fails.

Each says its name and returns what its library calls "not supported".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

NOT_SUPPORTED = {
    # Prefix of a call -> the code; cudaErrorNotSupported, CUBLAS_STATUS_NOT_SUPPORTED and so on.
    "__cuda": 801,
    "cuda": 801,
    "cublas": 15,
    "cudnn": 3000,
    "cusparse": 10,
    "cusolver": 9,
    "cufft": 16,
    "cupti": 27,
    "cuFile": 5007,  # CU_FILE_PLATFORM_NOT_SUPPORTED
    "cu": 801,
}
_CALL = re.compile(r"^(__cuda|cuda|cublas|cudnn|cusparse|cusolver|cufft|cupti|cuFile|cu)[A-Z]\w*$")
_NUM_BYTES = re.compile(r"^cuFile(Read|Write)$")  # they return how many, or -1
_TEXTS = re.compile(r"(ErrorString|StatusString|StatusName|ErrorName)$")


def undefined_calls(libraries: Iterable[Path], nm: str) -> set[str]:
    """CUDA calls that the shared `libraries` want from others."""
    names: set[str] = set()
    for library in libraries:
        names |= set(_symbols(nm, "-D", "--undefined-only", str(library)))
    return {name for name in names if is_ours(name)}


def is_ours(name: str) -> bool:
    """Whether `name` is a call of CUDA or its libraries.

    Examples
    --------
    >>> is_ours("cublasSgemm_v2"), is_ours("cuFileRead"), is_ours("curl_easy_init")
    (True, True, False)
    """
    return bool(_CALL.match(name))


def defined(objects: Iterable[Path], nm: str) -> set[str]:
    """Symbols that compiled `objects` define."""
    names: set[str] = set()
    for file in objects:
        names |= set(_symbols(nm, "--defined-only", str(file)))
    return names


def _symbols(nm: str, *arguments: str) -> list[str]:
    done = subprocess.run([nm, *arguments], capture_output=True, text=True, check=True)
    return [line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line]


def stub_source(names: Iterable[str]) -> str:
    """C for functions called `names`.

    Examples
    --------
    >>> print(stub_source(["cufftExecC2C"]).splitlines()[-1])
    STUB(cufftExecC2C, 16)
    """
    lines = [
        '#include "drycuda.h"',
        "#define STUB(name, code) \\",
        "    DRY_EXPORT int name(void) { return dry_unmodelled(#name, code); }",
        "#define RUNTIME(name, code) \\",
        "    DRY_EXPORT int name(void) { return dry_fail(dry_unmodelled(#name, code)); }",
        "#define TEXT(name, code) \\",
        "    DRY_EXPORT const char *name(void) { return dry_last_unmodelled(); }",
        "#define FILES(name, code) \\",  # a structure of two numbers, in one register
        "    DRY_EXPORT long name(void) { dry_unmodelled(#name, 0); return code; }",
    ]
    for name in sorted(names):
        found = _CALL.match(name)
        assert found is not None, name
        prefix = found[1]
        macro = "RUNTIME" if prefix in ("cuda", "__cuda") else "STUB"
        macro = "TEXT" if _TEXTS.search(name) else macro
        macro = "FILES" if prefix == "cuFile" else macro
        code = -1 if _NUM_BYTES.match(name) else NOT_SUPPORTED[prefix]
        lines.append(f"{macro}({name}, {code})")
    return "\n".join(lines) + "\n"
