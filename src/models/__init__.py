"""The methods: one file each, reading like the paper's algorithm."""

from src.models.base import Method
from src.models.ggd import GGD

__all__ = ["GGD", "Method"]
