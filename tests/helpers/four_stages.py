"""The chain of four equal stages that many tests plan by hand.

Store-all needs 92 bytes: 4 for the input, 20 for each bundle, 4 each for the gradient of the output
and of the input of the last stage. In 60 bytes two forwards run twice.
"""

from __future__ import annotations

import schedsim

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
