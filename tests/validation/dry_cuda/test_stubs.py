"""A function for every CUDA call that PyTorch links and the library does not model: it fails."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.dry_cuda import dry_device_name  # noqa: E402
from schedsim.validation.dry_cuda.stubs import is_ours, stub_source  # noqa: E402


def test_calls_that_are_not_modelled_say_their_names():
    """Every kind of call gets the code that its own library calls "not supported"."""
    lines = stub_source(["cudaGraphLaunch", "cusparseSpMM", "cusparseGetErrorString"]).splitlines()
    assert "RUNTIME(cudaGraphLaunch, 801)" in lines
    assert "STUB(cusparseSpMM, 10)" in lines
    assert "STUB(cuptiSubscribe, 27)" in stub_source(["cuptiSubscribe"])
    assert "TEXT(cusparseGetErrorString, 10)" in lines
    files = stub_source(["cuFileDriverOpen", "cuFileRead"]).splitlines()
    assert files[-2:] == ["FILES(cuFileDriverOpen, 5007)", "FILES(cuFileRead, -1)"]
    assert [is_ours(n) for n in ("cuptiFinalize", "cuMemMap", "cuFileRead", "cufoo")] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_profiler_records_what_the_host_does():
    """On a dry device its CUDA part fails by name; it crashed."""
    kinds = torch.profiler.ProfilerActivity
    x = torch.empty(8, 8, device="cuda")
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as found:
        torch.mm(x, x)
    assert any(event.key == "aten::mm" for event in found.key_averages())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernels_that_nvrtc_compiles():
    """NVRTC asks the driver for a private table, and crashed where there was none."""
    numbers = torch.full((8,), 12, dtype=torch.int32, device="cuda")
    assert torch.gcd(numbers, numbers).shape == (8,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(dry_device_name() is None, reason="a GPU may read files by itself")
def test_storage_that_the_device_reads_is_refused(tmp_path, capfd):
    """GPUDirect Storage's own library waited for a driver for ever."""
    with pytest.raises(RuntimeError):
        torch.cuda.gds.GdsFile(str(tmp_path / "file"), os.O_CREAT | os.O_RDWR)
    assert "cuFile" in capfd.readouterr().err
