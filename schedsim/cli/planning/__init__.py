"""The parts of ``schedsim plan``: one plan, the largest size, changes of a step, advice."""
