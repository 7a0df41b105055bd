"""A function for every CUDA call that PyTorch links and the library does not model: it fails."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.dry_cuda.stubs import is_ours, stub_source  # noqa: E402


def test_calls_that_are_not_modelled_say_their_names():
    """Every kind of call gets the code that its own library calls "not supported"."""
    lines = stub_source(["cudaGraphLaunch", "cusparseSpMM", "cusparseGetErrorString"]).splitlines()
    assert "RUNTIME(cudaGraphLaunch, 801)" in lines
    assert "STUB(cusparseSpMM, 10)" in lines
    assert "STUB(cuptiSubscribe, 27)" in stub_source(["cuptiSubscribe"])
    assert "TEXT(cusparseGetErrorString, 10)" in lines
    assert [is_ours(n) for n in ("cuptiFinalize", "cuMemMap", "cuFileRead", "cufoo")] == [
        True,
        True,
        False,
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
