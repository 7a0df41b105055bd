"""A forward written to a tape gives its backward."""

from schedsim.clusters.tape import RankOp, Tape


def test_gradients_of_two_readers_are_added():
    """In place of the first, once both are there."""
    tape = Tape({"x": 8, "d.y": 8})

    def reader(made):
        def undo():
            d = tape.new_gradient("x")
            tape.emit(RankOp(f"{made}'", (tape.gradient(made),), {d: 8}))
            tape.give("x", d)

        tape.run(RankOp(made, ("x",), {made: 8}), undo)

    def both():
        tape.give("a", tape.gradient("y"))
        tape.give("b", tape.gradient("y"))

    reader("a")
    reader("b")
    tape.run(RankOp("y", ("a", "b"), {"y": 8}), both)
    tape.finish("y", "d.y")
    assert tape.gradient("x") == "d.x"
    assert [op.name for op in tape.backward] == ["b'", "a'", "add d.x"]
    assert tape.backward[0].reads == tape.backward[1].reads == ("d.y",)
    assert tape.backward[-1].in_place == {"d.x": "d.x#0"}


def test_one_reader_gives_the_gradient_itself():
    """Nothing is added."""
    tape = Tape({"x": 8})
    tape.give("x", "d.other")
    assert (tape.gradient("x"), tape.has_gradient("y"), tape.backward) == ("d.other", False, [])
