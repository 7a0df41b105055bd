"""Strict reading: each field by its type, and each fault by its place."""

from __future__ import annotations

import json
import math

import pytest
from four_stages import CHAIN as FOUR

import schedsim
from schedsim import InvalidWorkloadError
from schedsim.errors import SchedsimError
from schedsim.files.document import from_dict, to_dict
from schedsim.files.reader import MAX_TOTAL_SECONDS, Reader, parse_json

CHAIN, PLAN = to_dict(FOUR), to_dict(schedsim.plan(FOUR, 60))
GRAPH = to_dict(FOUR.graph)


def test_near_misses_are_suggested():
    """A slip in a field's name gets the right name in the hint, whether a field lacks or is odd."""
    stage = {"forward_s": 1, "ouput_bytes": 4}
    reader = Reader(stage, "stages[0]")
    with pytest.raises(InvalidWorkloadError) as caught:
        reader.take_bytes("output_bytes")
    assert caught.value.path == "stages[0].output_bytes"
    assert "'ouput_bytes' a slip for it?" in caught.value.hint
    reader.take_bytes("saved_bytes", 0)
    reader.take_seconds("forward_s")
    with pytest.raises(InvalidWorkloadError, match=r"stages\[0\].ouput_bytes: unknown") as caught:
        reader.finish()
    assert "output_bytes" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"a":' * 100_000, "NaN", '{"a": NaN}', '{"a": Infinity}', "\xff",
     '{"a": 1, "a": 2}', "9" * 5000, '{"schema": "schedsim.chain/1"', "nul", '"text"', "[]", "3"],
)  # fmt: skip
def test_malformed_documents_are_refused(tmp_path, text):
    """Not JSON, not our JSON, too deep, or not text: one error class, with the file's name."""
    file = tmp_path / "bad.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidWorkloadError, match=r"bad\.json"):
        schedsim.load(file)


@pytest.mark.parametrize("document", [CHAIN, GRAPH, PLAN], ids=["chain", "graph", "plan"])
def test_truncation_anywhere_is_refused(document):
    """A file cut at any byte is never read as something else."""
    data = json.dumps(document).encode()
    for cut in range(len(data)):
        with pytest.raises(InvalidWorkloadError):
            from_dict(parse_json(data[:cut]))


TAKES = {
    "take str": lambda r: r.take("x", str),
    "take int": lambda r: r.take("x", int),
    "take bool": lambda r: r.take("x", bool),
    "choice": lambda r: r.take_choice("x", ("chain", "graph")),
    "count": lambda r: r.take_count("x", 1, least=1),
    "bytes": lambda r: r.take_bytes("x"),
    "optional bytes": lambda r: r.take_optional_bytes("x"),
    "seconds": lambda r: r.take_seconds("x"),
    "number": lambda r: r.take_number("x"),
    "total": lambda r: r.take_total_seconds("x"),
    "optional total": lambda r: r.take_optional_total_seconds("x"),
    "ratio": lambda r: r.take_optional_ratio("x"),
    "names": lambda r: r.take_names("x"),
    "sizes": lambda r: r.take_sizes("x"),
    "texts": lambda r: r.take_texts("x"),
    "settings": lambda r: r.take_settings("x"),
    "object": lambda r: r.take_object("x").names(),
    "objects": lambda r: [one.names() for one in r.take_objects("x")],
}


@pytest.mark.parametrize(
    ("take", "value", "taken"),
    [
        ("take str", "größer", "größer"),
        ("take int", -3, -3),
        ("take bool", False, False),
        ("choice", "graph", "graph"),
        ("count", 1, 1),
        ("bytes", 2**53 - 1, 2**53 - 1),
        ("optional bytes", None, None),
        ("seconds", 3, 3.0),
        ("number", -1.5, -1.5),
        ("total", 1e100, 1e100),
        ("optional total", None, None),
        ("ratio", None, None),
        ("ratio", 0, 0.0),
        ("names", ["a", "b"], ("a", "b")),
        ("names", [], ()),
        ("sizes", {"a": 1}, {"a": 1}),
        ("texts", {"a": "b"}, {"a": "b"}),
        ("settings", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ("object", {"b": 1}, ("b",)),
        ("objects", [{"b": 1}, {}], [("b",), ()]),
    ],
)
def test_what_a_field_takes(take, value, taken):
    """And then nothing is left of it."""
    reader = Reader({"x": value}, "")
    assert TAKES[take](reader) == taken
    reader.finish()


@pytest.mark.parametrize(
    ("take", "value", "path", "says"),
    [
        ("take str", 3, "at.x", "3 is not text"),
        ("take str", "a\nb", "at.x", "control characters"),
        ("take int", 1.0, "at.x", "1.0 is not an integer"),
        ("take int", True, "at.x", "True is not an integer"),
        ("take bool", 1, "at.x", "1 is not true or false"),
        ("choice", "tree", "at.x", "'tree' is unknown"),
        ("count", 0, "at.x", "0 is not at least 1"),
        ("bytes", None, "at.x", "not a whole number of bytes"),
        ("optional bytes", -1, "at.x", "negative"),
        ("seconds", "1", "at.x", "'1'"),
        ("number", True, "at.x", "True is not a number"),
        ("number", 10**400, "at.x", "too large a number"),
        ("number", math.nan, "at.x", "nan is not a finite number"),
        ("total", -1, "at.x", "-1"),
        ("optional total", MAX_TOTAL_SECONDS * 10, "at.x", "1e+116"),
        ("ratio", -0.5, "at.x", "not a finite number, zero or more"),
        ("ratio", math.nan, "at.x", "nan"),
        ("names", "abc", "at.x", "'abc' is not a list"),
        ("names", ["a", 1], "at.x[1]", "1 is not text"),
        ("names", ["a\tb"], "at.x[0]", "control characters"),
        ("sizes", [1], "at.x", "is not an object"),
        ("sizes", {"a": -1}, "at.x.a", "negative"),
        ("texts", {"a": 1}, "at.x.a", "not printable text"),
        ("texts", 3, "at.x", "is not an object"),
        ("settings", {"a": {"b": math.inf}}, "at.x.a.b", "not a finite number"),
        ("settings", {"a": [[[[[1]]]]]}, "at.x.a[0][0][0][0]", "nested too deeply"),
        ("settings", {"a": {1, 2}}, "at.x.a", "not a JSON value"),
        ("object", [], "at.x", "[] is not an object"),
        ("objects", {}, "at.x", "{} is not a list"),
        ("objects", [{}, 3], "at.x[1]", "3 is not an object"),
    ],
)
def test_what_a_field_refuses(take, value, path, says):
    """With its place below that of its object, and the value."""
    with pytest.raises(InvalidWorkloadError) as caught:
        TAKES[take](Reader({"x": value}, "at"))
    assert caught.value.path == path
    assert says in caught.value.message


def test_a_field_that_lacks():
    """Required ones are missing; others take their default, and may be skipped."""
    for name, take in TAKES.items():
        if name != "count":
            with pytest.raises(InvalidWorkloadError, match="missing field"):
                take(Reader({}, ""))
    reader = Reader({"description": object()}, "")
    assert reader.take("a", str, None) is None
    assert reader.take_names("b", ()) == ()
    assert reader.take_count("c", 7) == 7
    reader.skip("description")
    reader.skip("nothing")
    reader.finish()


def test_what_a_class_refuses_is_named_by_its_place():
    """An error with a field names the field; any other, the object that was being made."""

    def with_path(value):
        raise InvalidWorkloadError("is odd", path="size", hint="make it even")

    def without(value):
        raise SchedsimError("is odd", hint="make it even")

    reader = Reader({}, "setting.link")
    assert reader.make(int, "7") == 7
    for kind, path in ((with_path, "setting.link.size"), (without, "setting.link")):
        with pytest.raises(InvalidWorkloadError) as caught:
            reader.make(kind, 3)
        assert caught.value.path == path
        assert str(caught.value) == f"{path}: is odd"
        assert caught.value.hint == "make it even"


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_blamed_on_its_field(text):
    """Printed as it was written, and not as what Python makes of it."""
    document = parse_json(f'{{"x": {text}}}'.encode())
    shown = {"1e999": "1e999"}.get(text, text)
    for name in ("seconds", "number", "bytes", "ratio", "take str"):
        with pytest.raises(InvalidWorkloadError, match=f"x: {shown} "):
            TAKES[name](Reader(document, ""))


def test_a_document_with_a_mark_of_its_encoding():
    """As some editors write it."""
    assert parse_json(b"\xef\xbb\xbf{}") == {}
    with pytest.raises(InvalidWorkloadError, match="byte 1 is not UTF-8"):
        parse_json(b'"\xff"')
    with pytest.raises(InvalidWorkloadError, match="line 2 column 1"):
        parse_json(b'{"a":\n}')


def test_a_part_is_read_where_there_is_one_and_whole():
    """Without the field there is no part; what nobody took of a part is named by its place."""
    read = Reader({"link": {"rate": 3}, "other": {"rate": 3, "late": 1}, "none": None}, "setting")

    def part(item: Reader) -> int:
        return item.whole(item.take("rate", int))

    assert read.take_part("levels", part) is None
    assert read.take_part("link", part) == 3
    for name, path in (("other", "setting.other.late"), ("none", "setting.none")):
        with pytest.raises(InvalidWorkloadError) as caught:
            read.take_part(name, part)
        assert caught.value.path == path
