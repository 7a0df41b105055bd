"""Stand-ins for traced parts: bytes in proportion to the one open size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PartByHand:
    """Bytes of a part for each unit of its open size; its gradients have one size."""

    output: int
    given: int
    inputs: int
    gradient_bytes: int = 0
    input_gradients: int = 0

    def output_bytes(self, binding):
        """Bytes of the part's outputs."""
        return self.output * binding[0]

    def given_bytes(self, binding):
        """Bytes of the gradients that the part is given."""
        return self.given * binding[0]

    def input_bytes(self, binding):
        """Bytes of the part's inputs."""
        return self.inputs * binding[0]

    def input_gradient_bytes(self, binding):
        """Bytes of the gradients of the part's inputs."""
        return self.input_gradients * binding[0]
