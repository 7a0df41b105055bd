"""The options of ``schedsim cluster`` and ``schedsim plot cluster``."""

from __future__ import annotations

from schedsim.cli.options.cluster_options import ClusterRequest


def test_a_request_is_the_words_of_the_call():
    """Options that were not given are not in it."""
    request = ClusterRequest("m", 8, "h100-80gb", None, 2, 5.0, {"seq": 4})
    device = {"devices": 8, "device": "h100-80gb", "efficiency": None, "flash": 2, "network": 5.0}
    assert request.words() == {**device, "seq": 4}
