"""Certificates: proofs of what plans claim, in exact numbers that anybody's program can check."""

from __future__ import annotations

from .certify import certify

__all__ = ["certify"]
