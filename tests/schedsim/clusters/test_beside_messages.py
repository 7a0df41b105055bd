"""Computation beside messages: by hand, and on whole steps."""

from dataclasses import dataclass, field, replace

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, step_time
from schedsim.clusters.beside_messages import played_beside
from schedsim.clusters.fabric import Fabric
from schedsim.clusters.rank_memory import rank_actions
from schedsim.clusters.rank_step import RankStep
from schedsim.clusters.rank_units import SHARD_STREAM
from schedsim.clusters.stages import split_stages
from schedsim.dataflow.graph import Graph, Op
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

HOPPER = replace(get_fabric("h100-80gb"), near_sending=0.25)
AMPERE = replace(get_fabric("a100-80gb"), near_sending=0.25)


@dataclass
class Written:
    """As much of a written step as is played."""

    ops: list[Op]
    fabric: Fabric
    degrees: Degrees = field(default_factory=lambda: Degrees(fsdp=8))

    @property
    def graph(self):
        return Graph("by hand", tuple(self.ops))

    @property
    def schedule(self):
        return Schedule([op.name for op in self.ops], list(range(len(self.ops))))

    def products(self):
        return [op.name.startswith("product") for op in self.ops]


def op(name, time_s, *reads):
    """An op on the stream that its name says."""
    stream = SHARD_STREAM if name.startswith("message") else "compute"
    return Op(name, "forward", time_s, 0, reads, {f"t.{name}": 1}, stream=stream)


def played(fabric, *ops):
    """Seconds of each op, and its start in the simulation that they are given to."""
    found = played_beside(Written(list(ops), fabric))
    return found.run_s.tolist(), found.start_s.tolist()


@pytest.mark.parametrize(
    ("message_s", "product_s"),
    [
        # No more is lost than what is sent beside it, and no more than a second wave takes.
        (0.5, 2.5),
        (2.0, 4.0),
        (9.0, 4.0),
    ],
)
def test_a_product_of_hopper_runs_in_two_waves(message_s, product_s):
    """It takes twice as long beside a message that lasts."""
    seconds, _ = played(HOPPER, op("message", message_s), op("product", 2.0))
    assert seconds == [message_s, product_s]


def test_other_kernels_have_fewer_processors():
    """On Hopper all but products, on Ampere these too."""
    assert played(HOPPER, op("message", 2.0), op("norm", 3.0))[0] == [2.0, 3.5]
    assert played(AMPERE, op("message", 2.0), op("product", 3.0))[0] == [2.0, 3.5]
    assert played(AMPERE, op("message", 9.0), op("product", 3.0))[0] == [9.0, 4.0]


def test_a_message_waits_for_a_product_to_leave_processors():
    """Its seconds count from when it could begin: behind the norm."""
    ops = op("norm", 1.0), op("product", 4.0), op("message", 1.0, "t.norm"), op("last", 2.0)
    seconds, starts = played(HOPPER, *ops)
    assert seconds == [1.0, 4.0, 5.0, 2.25]
    assert starts == [0.0, 1.0, 1.0, 5.0]
    # Ampere's product goes on with fewer.
    assert played(AMPERE, *ops)[0] == [1.0, 4.25, 1.0, 2.0]


def test_the_second_wave_leaves_processors_to_the_next_message():
    """The first wave ends at 2 s, and the second at 3."""
    ops = op("message a", 1.0), op("product", 2.0), op("message b", 4.0), op("product c", 1.0)
    seconds, starts = played(HOPPER, *ops)
    assert seconds == [1.0, 3.0, 5.0, 2.0]
    assert starts == [0.0, 0.0, 1.0, 3.0]


def test_messages_share_their_links():
    """Those inside of nodes; what crosses them goes over cards."""
    stream = {"a": SHARD_STREAM, "b": "link:tensor"}
    ops = [replace(op(f"message {k}", 2.0), stream=name) for k, name in stream.items()]
    ops.append(op("last", 1.0, "t.message a"))
    assert played(HOPPER, *ops)[0] == [4.0, 4.0, 1.0]
    apart = Written(ops, HOPPER, Degrees(fsdp=8, tensor=8))
    assert played_beside(apart).run_s.tolist() == [2.0, 2.0, 1.0]


def test_what_computes_alone_takes_its_own_time():
    """Without messages, and beside a message that takes no time."""
    assert played(HOPPER, op("product", 2.0))[0] == [2.0]
    assert played(HOPPER, op("message", 0.0), op("product", 2.0))[0] == [0.0, 2.0]


@pytest.mark.parametrize(
    ("degrees", "training"),
    [
        (Degrees(fsdp=8), Training(seq=2048, recompute="selective")),
        (Degrees(fsdp=4, tensor=2), Training(seq=1024, recompute="full")),
        (Degrees(fsdp=4, replicate=4), Training(seq=1024, batch=2, num_micro_batches=2)),
        (Degrees(fsdp=8), Training(seq=1024, recompute="none@host2")),
    ],
)
@pytest.mark.parametrize("name", ["h100-80gb", "a100-80gb"])
def test_whole_steps(name, degrees, training):
    """Nothing takes less than its op; what computes ends no sooner than in a step without this."""
    model, fabric = get_architecture("llama3.2-1b"), get_fabric(name)
    step = RankStep(
        model, degrees, training, fabric, split_stages(model, degrees, training), one_stream=False
    )
    step.write(rank_actions(degrees, training, 0, 2))
    found, plain = played_beside(step), simulate(step.graph, step.schedule)
    assert (found.run_s >= plain.run_s * (1 - 1e-12)).all()
    assert (found.end_s >= plain.end_s * (1 - 1e-12)).all()
    assert plain.makespan_s < found.makespan_s < plain.makespan_s + plain.busy_s["link:shard"]
    assert found.run_s.tolist() == pytest.approx((found.end_s - found.start_s).tolist(), rel=1e-6)


def test_links_of_no_seconds_take_no_processors():
    """The step is then that of its computation."""
    model, degrees, training = get_architecture("llama3.2-1b"), Degrees(fsdp=8), Training(seq=2048)
    quick = replace(HOPPER, near_bytes_per_s=1e18)
    alone = replace(quick, persistent=False, near_sending=0.0)
    one, other = (step_time(model, degrees, training, one).step_s for one in (quick, alone))
    assert one == pytest.approx(other, rel=0.02)
    assert step_time(model, degrees, training, HOPPER).step_s > 1.03 * one
