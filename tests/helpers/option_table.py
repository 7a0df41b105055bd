"""Which pairs of options are refused, command by command; every other pair is honoured.

A pair stands in the row of the option that the command declares first. Of two options of the
workload, the pairs are those of ``plan`` and ``simulate``: all other commands read them alike.
"""

from __future__ import annotations

from collections.abc import Mapping

_TABLE = """
plan
  --effort: --memory-level --accumulate --chunk --ways files --times --synthetic --seed
  --effort: --level --remeasure
  --planner: --order --link --host-mem --host-latency --memory-level --search-seed
  --gap: --memory-level --accumulate --chunk --ways files --times --synthetic --seed --level
  --gap: --remeasure
  --time-limit: --memory-level
  --slots: --order --link --host-mem --host-latency --search-seed
  --order: --memory-level --accumulate --chunk --ways files --times --synthetic --seed --level
  --order: --remeasure
  --order: --recompute
  --keep: --memory-level --maximize --certificate --accumulate --chunk --ways
  --recompute: --memory-level --maximize --certificate --accumulate --chunk --ways
  --recompute: --link --host-mem --host-latency --allow
  --link: --memory-level
  --host-mem: --memory-level
  --host-latency: --memory-level
  --memory-level: --search-seed --accumulate --chunk --ways --allow
  --maximize: --accumulate --chunk --ways files --batch --times --synthetic --seed
  --allocator: --accumulate --chunk --ways
  --alloc-conf: --accumulate --chunk --ways
  --certificate: --link --host-mem --host-latency --memory-level --maximize --allocator
  --certificate: --alloc-conf --accumulate --chunk --ways --allow
  --accumulate: --allow files --preset --layers --hidden --heads --seq --batch --dtype
  --accumulate: --attention --granularity --tensor-parallel --data-parallel --zero --optimizer
  --accumulate: --efficiency --times --synthetic --seed --static --sequence-parallel --head
  --chunk: --allow files --preset --layers --hidden --heads --seq --batch --dtype --attention
  --chunk: --granularity --tensor-parallel --data-parallel --zero --optimizer --efficiency
  --chunk: --times --synthetic --seed --static --sequence-parallel --head
  --ways: --allow files --preset --layers --hidden --heads --seq --batch --dtype --attention
  --ways: --granularity --tensor-parallel --data-parallel --zero --optimizer --efficiency
  --ways: --times --synthetic --seed --static --sequence-parallel --head
  --allow: --synthetic --seed
  files: --preset --layers --hidden --heads --seq --batch --dtype --attention --granularity
  files: --tensor-parallel --data-parallel --zero --optimizer --device --efficiency --times
  files: --synthetic --seed --level --static --sequence-parallel --head --remeasure
  --preset: --times --synthetic --seed --level --head --remeasure
  --layers: --times --level --remeasure
  --hidden: --synthetic --seed --level --remeasure
  --heads: --synthetic --seed --level --remeasure
  --seq: --synthetic --seed --level --remeasure
  --batch: --synthetic --seed --level --remeasure
  --dtype: --synthetic --seed --level --remeasure
  --attention: --synthetic --seed --level --remeasure
  --granularity: --times --synthetic --seed --level --remeasure
  --tensor-parallel: --synthetic --seed --level --remeasure
  --data-parallel: --synthetic --seed --level --static --remeasure
  --zero: --synthetic --seed --level --static --remeasure
  --optimizer: --synthetic --seed --level --static --remeasure
  --device: --times --synthetic --seed
  --efficiency: --times --synthetic --seed --level --remeasure
  --times: --synthetic --seed --level --head --remeasure
  --synthetic: --level --static --sequence-parallel --head --remeasure
  --seed: --level --static --sequence-parallel --head --remeasure
  --level: --static --sequence-parallel --head
  --remeasure: --static --sequence-parallel --head
simulate
  files: --preset --layers --hidden --heads --seq --batch --dtype --attention --granularity
  files: --tensor-parallel --data-parallel --zero --optimizer --device --efficiency --times
  files: --synthetic --seed --level --static --sequence-parallel --head --remeasure
  --preset: --times --synthetic --seed --level --head --remeasure
  --layers: --times --level --remeasure
  --hidden: --synthetic --seed --level --remeasure
  --heads: --synthetic --seed --level --remeasure
  --seq: --synthetic --seed --level --remeasure
  --batch: --synthetic --seed --level --remeasure
  --dtype: --synthetic --seed --level --remeasure
  --attention: --synthetic --seed --level --remeasure
  --granularity: --times --synthetic --seed --level --remeasure
  --tensor-parallel: --synthetic --seed --level --remeasure
  --data-parallel: --synthetic --seed --level --static --remeasure
  --zero: --synthetic --seed --level --static --remeasure
  --optimizer: --synthetic --seed --level --static --remeasure
  --device: --times --synthetic --seed
  --efficiency: --times --synthetic --seed --level --remeasure
  --times: --synthetic --seed --level --head --remeasure
  --synthetic: --level --static --sequence-parallel --head --remeasure
  --seed: --level --static --sequence-parallel --head --remeasure
  --level: --static --sequence-parallel --head
  --remeasure: --static --sequence-parallel --head
compare
  --planners: --link --host-mem --host-latency
estimate
  --json: files --synthetic --seed --times --level --remeasure
explain
  --alloc-conf: --top --json -o files --preset --layers --hidden --heads --seq --batch
  --alloc-conf: --dtype --attention --granularity --tensor-parallel --data-parallel --zero
  --alloc-conf: --optimizer --device --efficiency --times --synthetic --seed --level --remeasure
  --alloc-conf: --static --sequence-parallel --head
  --top: --json
pipeline
  --stages: --chunks --partition --replay --layers
  --micro-batches: --chunks --replay
  --schedule: --chunks --replay
  --chunks: --partition --replay --layers
  --recompute: --replay
  --partition: --replay --preset --layers --granularity --head
  --link: --replay
  --link-latency: --replay
  --collectives: --replay files --synthetic --seed --level --remeasure
  --free-outputs: --replay
  --late-recompute: --replay
  --replay: --mem --preset --layers --hidden --heads --seq --batch --dtype --attention
  --replay: --granularity --tensor-parallel --data-parallel --zero --optimizer --device
  --replay: --efficiency --times --synthetic --seed --static --sequence-parallel --head
plot frontier
  --order: files --granularity --times --synthetic --seed --level --remeasure
  --order: --recompute
  --time-limit: files --granularity --times --synthetic --seed --level --remeasure
  --points: files --granularity --times --synthetic --seed --level --remeasure
plot pipeline
  --stages: --chunks --partition --replay --layers
  --micro-batches: --chunks --replay
  --schedule: --chunks --replay
  --chunks: --partition --replay --layers
  --recompute: --replay
  --partition: --replay --preset --layers --granularity --head
  --link: --replay
  --link-latency: --replay
  --collectives: --replay files --synthetic --seed --level --remeasure
  --free-outputs: --replay
  --late-recompute: --replay
  --replay: --mem --preset --layers --hidden --heads --seq --batch --dtype --attention
  --replay: --granularity --tensor-parallel --data-parallel --zero --optimizer --device
  --replay: --efficiency --times --synthetic --seed --static --sequence-parallel --head
plot timeline
  --mem: --capacity
  --against: --capacity
  --capacity: --allocator --alloc-conf files --preset --layers --hidden --heads --seq --batch
  --capacity: --dtype --attention --granularity --tensor-parallel --data-parallel --zero
  --capacity: --optimizer --device --efficiency --times --synthetic --seed --level --static
  --capacity: --remeasure
  --capacity: --sequence-parallel --head
validate
  plan_file: --keep --recompute
report
  -o: --preset --layers --hidden --heads --seq --batch --dtype --attention --granularity
  -o: --tensor-parallel --data-parallel --zero --optimizer --device --efficiency --times
  -o: --synthetic --seed --static --sequence-parallel --head
export
  --framework-version: --to --list --preset --layers --hidden --heads --seq --batch --dtype
  --framework-version: --attention --granularity --tensor-parallel --data-parallel --zero
  --framework-version: --optimizer --device --efficiency --times --synthetic --seed --level
  --framework-version: --remeasure
  --framework-version: --static --sequence-parallel --head
  --to: --list --preset --layers --hidden --heads --seq --batch --dtype --attention
  --to: --granularity --tensor-parallel --data-parallel --zero --optimizer --device --efficiency
  --to: --times --synthetic --seed --level --static --sequence-parallel --head --remeasure
  --list: -o files --preset --layers --hidden --heads --seq --batch --dtype --attention
  --list: --granularity --tensor-parallel --data-parallel --zero --optimizer --device
  --list: --efficiency --times --synthetic --seed --level --static --sequence-parallel --head
  --list: --remeasure
  --json: --preset --layers --hidden --heads --seq --batch --dtype --attention --granularity
  --json: --tensor-parallel --data-parallel --zero --optimizer --device --efficiency --times
  --json: --synthetic --seed --level --static --sequence-parallel --head --remeasure
  -o: --preset --layers --hidden --heads --seq --batch --dtype --attention --granularity
  -o: --tensor-parallel --data-parallel --zero --optimizer --device --efficiency --times
  -o: --synthetic --seed --level --static --sequence-parallel --head --remeasure
"""


def refused_pairs() -> Mapping[str, frozenset[frozenset[str]]]:
    """Command -> the pairs that it refuses."""
    found: dict[str, set[frozenset[str]]] = {}
    command = ""
    for line in _TABLE.strip().splitlines():
        if not line.startswith(" "):
            command = line
            continue
        first, _, others = line.strip().partition(": ")
        found.setdefault(command, set()).update(frozenset({first, o}) for o in others.split())
    return {name: frozenset(pairs) for name, pairs in found.items()}
