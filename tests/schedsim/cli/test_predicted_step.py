"""The step that the options of a cluster ask for."""

from schedsim.cli.options.cluster_options import ClusterRequest
from schedsim.cli.predicted_step import predicted_step


def request(recompute):
    """A small model on eight devices."""
    options = {"seq": 128, "recompute": recompute}
    return ClusterRequest("llama3.2-1b", 8, "h100-80gb", None, 2, options=options)


def test_fit_recomputes_what_the_budget_demands():
    """Nothing with the device's memory; other words are taken as they are."""
    assert predicted_step(request("fit"), None).training.recompute == "none"
    assert predicted_step(request("fit"), 1).training.recompute == "full"
    assert predicted_step(request("selective"), 1).training.recompute == "selective"
