"""Values larger than what they follow from, made in the half of the step that reads them."""

from __future__ import annotations

from ..capture.program import Call, Program
from ..capture.to_graph import result_storages
from .clusters import StorageReaders
from .fusible import elementwise, is_indices_of_offsets
from .recomputed_values import RecomputedValues

SMALLER = 2
"""How many times smaller than a value the tensors are that are kept in its place."""


def widen_in_backward(program: Program) -> None:
    """Make values that only the backward reads there, where smaller tensors are kept for them.

    Places of a max pooling's maxima are numbers of one byte within their windows, and of eight
    bytes for the kernel of the backward; a mask may be kept as what it is compared with. As many
    ops run as before. O(size of the program).
    """
    reading, results = StorageReaders(program), set(result_storages(program))
    copies = RecomputedValues(program)
    for storage, maker in list(reading.maker.items()):
        readers = reading.readers.get(storage, [])
        late = maker < program.seed and storage not in results and bool(readers)
        if not late or readers[0] < program.seed or not _is_cheap(program, program.calls[maker]):
            continue
        made = [s for s in reading.reads[maker] if s in reading.maker]
        kept_bytes = sum(program.storages[s].size_bytes for s in made)
        lean = any(program.calls[r].lean is not None for r in readers)
        if not lean and kept_bytes * SMALLER <= program.storages[storage].size_bytes:
            copies.compute_again({storage}, readers)
    copies.insert()


def _is_cheap(program: Program, call: Call) -> bool:
    fixed = call.random or call.once or call.is_tuple or bool(call.tokens)
    fixed = fixed or program.reads_doubted(call)
    return not fixed and (elementwise(program, call) or is_indices_of_offsets(call.target))
