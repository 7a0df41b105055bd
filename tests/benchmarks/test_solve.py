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


def test_budgets_are_between():
    assert solve.budgets_between(100, 200) == [110, 135, 160, 185]
