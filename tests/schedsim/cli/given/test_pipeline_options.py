"""The options of a pipeline: what is given, what holds by default, what lacks."""

from __future__ import annotations

from dataclasses import fields

import click
import pytest

from schedsim.cli.given.pipeline_options import (
    DEFAULTS,
    FLAGS,
    PipelineOptions,
    PipelineRequest,
    pipeline_options,
    with_defaults,
)
from schedsim.cli.given.workload_source import Source
from schedsim.cli.options.formula import no_options
from schedsim.errors import SchedsimError


@pytest.fixture
def read():
    """The request that arguments make."""
    seen = []

    @click.command()
    @pipeline_options
    def command(request: PipelineRequest) -> None:
        seen.append(request)

    def call(line: str) -> PipelineRequest:
        command.main(line.split(), standalone_mode=False)
        return seen.pop()

    return call


def test_only_what_is_given_is_in_a_request(read):
    """A replay must tell what was said from what holds anyhow."""
    request = read("chain.json")
    assert (request.given, request.budget, request.replay) == ({}, None, None)
    assert request.source.files == ("chain.json",)
    line = "--layers 4 --stages 2 --micro-batches 8 --free-outputs --link-latency 0 --mem 60%"
    request = read(f"{line} --replay p.json")
    assert request.given == {
        "num_devices": 2, "num_micro_batches": 8, "free_outputs": True, "link_latency_s": 0.0
    }  # fmt: skip
    assert request.source.given == {"layers": 4}
    assert (request.budget, request.replay) == ("60%", "p.json")


def test_every_field_has_a_flag_that_sets_it(read):
    """One by one: the value arrives in its field, and in no other."""
    assert list(FLAGS) == [field.name for field in fields(PipelineOptions)]
    values = {"num_devices": 3, "num_micro_batches": 5, "num_chunks": 7, "link_latency_s": 0.5}
    for field, flag in FLAGS.items():
        switch = DEFAULTS.get(field) is False
        value = True if switch else values.get(field, "x")
        assert read(flag if switch else f"{flag} {value}").given == {field: value}


def test_defaults_hold_where_nothing_is_given():
    """And what has none is nothing."""
    options = with_defaults({"num_devices": 2, "num_micro_batches": 8, "order": "gpipe"})
    assert (options.order, options.num_chunks, options.partition) == ("gpipe", 1, "even")
    assert (options.link, options.recompute, options.collectives) == (None, None, None)
    assert not options.free_outputs


@pytest.mark.parametrize("missing", ["num_devices", "num_micro_batches"])
def test_what_has_no_default_must_be_given(missing):
    """Or a plan that says it."""
    given = {"num_devices": 2, "num_micro_batches": 8}
    del given[missing]
    request = PipelineRequest(Source((), no_options({})), None, given, None)
    with pytest.raises(SchedsimError, match=f"{FLAGS[missing]} is missing") as caught:
        request.options()
    assert "--replay plan.json" in caught.value.hint
