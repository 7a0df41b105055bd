"""Many processes that train together: they measure together, and follow one plan."""

from .failures import RankError
from .members import ranks_of
from .ranks import ALONE, Ranks

__all__ = ["ALONE", "RankError", "Ranks", "ranks_of"]
