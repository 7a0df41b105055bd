"""The documented rules of the Trace Event Format that our traces use, as a check."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from typing import Any

# https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: phases of
# complete, counter, flow and metadata events, and the names of metadata.
PHASES = {"X", "C", "s", "f", "M"}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def check_trace(document: Any) -> None:
    """Raise where `document` breaks a rule."""
    json.loads(json.dumps(document, allow_nan=False))
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    flows: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    latest = -math.inf
    for event in document["traceEvents"]:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in METADATA
            key = "name" if event["name"].endswith("_name") else "sort_index"
            assert list(event["args"]) == [key]
            assert isinstance(event["args"][key], str if key == "name" else int)
            continue
        assert isinstance(event["ts"], float | int)
        assert 0 <= event["ts"] < math.inf
        assert event["ts"] >= latest, "not sorted by time"
        latest = event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            assert event["args"]
            assert all(type(value) in (int, float) for value in event["args"].values())
        else:
            assert event["cat"]
            flows[event["cat"], event["id"]].append(event)
    for slices in tracks.values():
        for one, other in itertools.pairwise(slices):
            # To the nanosecond, in which readers count.
            end = round(one["ts"] * 1000) + round(one["dur"] * 1000)
            assert end <= round(other["ts"] * 1000), "runs of a stream overlap"
    for ends in flows.values():
        start, finish = ends
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert start["name"] == finish["name"]
        for event in ends:
            around = [
                piece
                for piece in tracks[event["pid"], event["tid"]]
                if piece["ts"] <= event["ts"] <= piece["ts"] + piece["dur"]
            ]
            assert around, "a flow that is tied to no slice"
