"""Certificates as they stand in a file."""

from fractions import Fraction

from schedsim.plans.certificate import Certificate, ProvenBound, ProvenLeast
from schedsim.plans.scope import ANY_SCHEDULE, PERSISTENT


def made(makespan_s, bound_s):
    return Certificate(
        instance={"name": "n", "kind": "chain", "content_hash": "sha256:0"},
        budget_bytes=9,
        planner="frontier",
        schedule=("F0", "loss", "B0"),
        peak_bytes=9,
        makespan_s=makespan_s,
        bound=ProvenBound(PERSISTENT, bound_s, {"kind": "dynamic-programme"}),
        least=ProvenLeast(ANY_SCHEDULE, 7, {"kind": "own-bytes", "op": "B0"}),
        document={"schema": "schedsim.chain/1"},
    )


def test_numbers_are_exact_texts():
    content = made(Fraction(10, 3), Fraction(3)).to_dict()
    assert (content["makespan_s"], content["bound"]["bound_s"]) == ("10/3", "3")
    assert (content["gap"], content["optimal"]) == ("1/9", False)
    assert content["least"] == {
        "scope": "any schedule",
        "bytes": 7,
        "proof": {"kind": "own-bytes", "op": "B0"},
    }


def test_optimal_is_said_up_to_a_billionth():
    bound = Fraction(3)
    assert made(bound, bound).optimal
    assert made(bound * (1 + Fraction(1, 10**9)), bound).optimal
    assert not made(bound * (1 + Fraction(2, 10**9)), bound).optimal


def test_nothing_is_claimed_where_there_is_no_schedule():
    certificate = Certificate({}, 3, "auto", None, None, None, None, None)
    content = certificate.to_dict()
    assert (content["gap"], content["optimal"], content["schedule"]) == (None, False, None)


def test_the_workload_is_there_unless_it_is_left_out():
    certificate = made(Fraction(3), Fraction(3))
    assert "workload" in certificate.to_dict()
    assert "workload" not in certificate.without_document().to_dict()
