"""A function for every CUDA call that PyTorch links and the library does not model: it fails."""

from __future__ import annotations

from schedsim.validation.dry_cuda.stubs import is_ours, stub_source


def test_calls_that_are_not_modelled_say_their_names():
    """Every kind of call gets the code that its own library calls "not supported"."""
    lines = stub_source(["cudaGraphLaunch", "cusparseSpMM", "cusparseGetErrorString"]).splitlines()
    assert "RUNTIME(cudaGraphLaunch, 801)" in lines
    assert "STUB(cusparseSpMM, 10)" in lines
    assert "TEXT(cusparseGetErrorString, 10)" in lines
    assert [is_ours(n) for n in ("cudnnCreate", "cuMemMap", "cuFileRead", "cufoo")] == [
        True,
        True,
        False,
        False,
    ]
