"""Canaries of what inductor does not document."""

from __future__ import annotations

import shutil
import threading

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private import inductor_calls as inductor  # noqa: E402
from schedsim.validation.torch_private.fake_tensors import fake_mode  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402

aten = torch.ops.aten
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)


def test_decompositions_take_normalisation_apart_and_leave_what_we_keep():
    table = inductor.decompositions()
    assert aten.native_layer_norm.default in table
    assert aten.embedding_dense_backward.default not in table


def test_a_trace_is_of_decomposed_ops():
    mode = fake_mode()
    with mode:
        x = torch.empty(4, 8)
    graph = inductor.traced(lambda x: aten._softmax.default(x, 1, False), [x], mode)
    found = [node.target for node in graph.nodes if node.op == "call_function"]
    assert aten.exp.default in found
    assert aten._softmax.default not in found


def test_seeds_are_those_that_compiled_code_draws():
    """As many numbers of 64 bits; the generator moves on."""
    torch.manual_seed(0)
    one, two = inductor.draw_seeds(3, "cpu"), inductor.draw_seeds(3, "cpu")
    assert one.dtype is torch.int64
    assert one.tolist() != two.tolist()


def test_inductor_may_be_told_to_leave_draws_to_eager():
    """And takes others apart then; what was told before does not matter."""
    with torch._inductor.config.patch(fallback_random=True):
        assert inductor.draws_as_eager()
        kept = inductor.decompositions()
    assert not inductor.draws_as_eager()
    apart = inductor.decompositions()
    assert aten.native_dropout.default in apart
    assert aten.native_dropout.default not in kept


def test_settings_under_which_code_takes_uncounted_memory_are_not_ours():
    """Graphs of CUDA have a pool of memory; arguments that are taken to be aligned are copied."""
    from torch._inductor import config

    with config.patch({"triton.cudagraphs": True, "assume_aligned_inputs": True}):
        with inductor.own_settings():
            assert not config.triton.cudagraphs
            assert not config.assume_aligned_inputs
        assert config.triton.cudagraphs


def test_kernels_are_waited_for_later_by_this_thread_alone(monkeypatch):
    waited: list[str] = []
    monkeypatch.setattr(AsyncCompile, "wait", lambda self, scope: waited.append(scope["name"]))
    compilers = AsyncCompile()
    with inductor.kernels_later() as waits:
        compilers.wait({"name": "own"})
        other = threading.Thread(target=lambda: compilers.wait({"name": "another's"}))
        other.start()
        other.join()
        assert waited == ["another's"]
    for wait in waits:
        wait()
    compilers.wait({"name": "after"})
    assert waited == ["another's", "own", "after"]


def test_threads_that_end_in_another_order_leave_no_wait_out(monkeypatch):
    """The one that began first may be over first; what it compiles later is waited for."""
    waited: list[str] = []
    monkeypatch.setattr(AsyncCompile, "wait", lambda self, scope: waited.append(scope["name"]))
    compilers, begun, over = AsyncCompile(), threading.Event(), threading.Event()

    def beside():
        with inductor.kernels_later():
            begun.set()
            assert over.wait(30)

    other = threading.Thread(target=beside)
    with inductor.kernels_later():
        other.start()
        assert begun.wait(30)
    over.set()
    other.join()
    compilers.wait({"name": "after"})
    assert waited == ["after"]


@pytest.mark.slow
@needs_compiler
def test_code_may_be_called_after_the_wait():
    mode = fake_mode()
    with mode:
        x = torch.empty(5)
    with inductor.kernels_later() as waits:
        compiled = inductor.compile_function(lambda x: (x.sin() + 7.25,), [x], mode)
    assert waits
    for wait in waits:
        wait()
    x = torch.randn(5)
    torch.testing.assert_close(compiled([x])[0], x.sin() + 7.25)


def test_settings_are_ours_within_and_as_they_were_after():
    from torch._inductor import config

    before = config.reorder_for_peak_memory, config.reorder_for_locality, config.size_asserts
    with inductor.own_settings():
        assert (config.reorder_for_peak_memory, config.reorder_for_locality) == (False, False)
    assert (config.reorder_for_peak_memory, config.reorder_for_locality, config.size_asserts) == (
        before
    )


@pytest.mark.slow
@needs_compiler
def test_a_graph_of_dynamo_is_compiled_as_by_inductor_itself_and_stays_as_it_is():
    made = []

    def backend(graph_module, examples):
        before = str(graph_module.graph)
        made.append(inductor.compile_graph(graph_module, examples))
        assert str(graph_module.graph) == before
        return made[-1]

    x = torch.randn(8)
    with torch.no_grad():
        found = torch.compile(lambda x: x.sin().cos() + 0 * x, backend=backend)(x)
    assert torch.allclose(found, x.sin().cos())
    assert len(made) == 1
