"""Proofs of what plans say, in exact numbers that a stranger's program can check."""

from __future__ import annotations

from .certify import certify

__all__ = ["certify"]
