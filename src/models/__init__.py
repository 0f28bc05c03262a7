"""The methods: one file each, reading like the paper's algorithm."""

from src.models.base import Method
from src.models.dgi import DGI
from src.models.dgi_bce import DGIBCE
from src.models.ggd import GGD
from src.models.mvgrl import MVGRL
from src.models.mvgrl_bce import MVGRLBCE

__all__ = ["DGI", "DGIBCE", "GGD", "MVGRL", "MVGRLBCE", "Method"]
