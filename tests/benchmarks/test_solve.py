"""Planning an instance as the library keeps it."""

from rematlib import FOLDER, script

import schedsim

check, solve = script("check"), script("solve")


def test_a_chain_is_solved_and_certified():
    file = FOLDER / "instances" / "random-chain-6-0.json.gz"
    chain = schedsim.load(file)
    least = solve.least_budget(chain, 0.1)
    assert chain.static_bytes < least
    one = solve.solve(chain, least, 0.1)
    assert one["status"] == "optimal"
    assert "workload" not in one
    assert one["found"]["by"].startswith("schedsim ")
    assert check.verify(check.Instance(check.read(file)), one)["optimal"]


def test_a_schedule_that_is_faster_than_all_persistent_ones_is_certified_beside_them():
    file = FOLDER / "instances" / "uniform-chain-4-1-0.json.gz"
    chain = schedsim.load(file)
    best = solve.solve(chain, 52, 0.5)
    beyond = solve.solve_beyond(chain, best, 0.5)
    assert (best["makespan_s"], beyond["makespan_s"]) == ("17", "15")
    assert check.verify(check.Instance(check.read(file)), beyond)["optimal"]
    assert beyond["bound"]["scope"] == check.ANY
    assert solve.solve_beyond(chain, beyond, 0.5) is None


def test_budgets_are_between():
    assert solve.budgets_between(100, 200) == [110, 135, 160, 185]
