"""The measured peak of steps in loops that somebody else wrote; all examples use it.

On a GPU ``torch.cuda.max_memory_allocated()`` gives the peak. On a CPU no function does, so this
module reads the allocator's own record.
"""

import torch
from schedsim.validation.measure.allocator import AllocatorRecord
from schedsim.validation.measure.storage import storages
from torch import nn

WARM = 3  # steps after which everything is planned, and the optimizer has its state


class StepPeaks:
    """`begin` and `end` around each step; `most` is the largest peak, what is resident included."""

    def __init__(self, *resident):
        self.resident, self.num_steps, self.most, self._record = list(resident), 0, 0, None

    def begin(self, *batch):
        """A step begins. The first steps are not measured: schedsim reads the same record there."""
        self.num_steps += 1
        if self.num_steps > WARM:
            there = storages([tensors_of(self.resident), batch])
            self._alive = {storage.data_ptr(): storage.nbytes() for storage in there}
            self._record = AllocatorRecord()
            self._record.start()
            self._record.mark()

    def end(self):
        """The step is over."""
        if self._record is not None:
            (changes,) = self._record.stop()
            self._record, alive = None, self._alive
            live = sum(alive.values())
            self.most = max(self.most, live)
            for place, change in changes:
                if change > 0:
                    alive[place] = change
                elif place in alive:
                    change = -alive.pop(place)
                else:
                    continue  # was there before, and is nothing of ours
                live += change
                self.most = max(self.most, live)


def tensors_of(things):
    """All tensors in models (gradients too), optimizers and trees."""
    found = []
    for thing in things:
        if isinstance(thing, nn.Module):
            found += [*thing.parameters(), *thing.buffers()]
            found += [p.grad for p in thing.parameters() if p.grad is not None]
        else:
            state = isinstance(thing, torch.optim.Optimizer)
            found.append([list(s.values()) for s in thing.state.values()] if state else thing)
    return found


def show(plain, planned, budget):
    """Both runs, (losses, peak) each, as every example prints them; an error where they differ."""
    (losses, most), (same, within) = plain, planned
    plain_mib, planned_mib, budget_mib = (size / 2**20 for size in (most, within, budget))
    print(f"plain:   {plain_mib:.2f} MiB, last loss {losses[-1]:.6f}")
    print(f"planned: {planned_mib:.2f} MiB of {budget_mib:.2f} MiB, last loss {same[-1]:.6f}")
    print(f"losses equal: {losses == same}")
    assert losses == same
    assert within <= budget
