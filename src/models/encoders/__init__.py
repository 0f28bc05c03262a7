"""Encoders: from a graph to one vector for each node."""

from src.models.encoders.base import ACTIVATIONS, Embeddings, Encoder
from src.models.encoders.gcn import GCN, SGC, GCNLayer
from src.models.encoders.pyg import GAT, GIN, SAGE, PyGEncoder

__all__ = ["ACTIVATIONS", "ENCODERS", "GCN", "SGC", "Embeddings", "Encoder", "GCNLayer", "PyGEncoder"]

ENCODERS: dict[str, type[Encoder]] = {"gcn": GCN, "gat": GAT, "sage": SAGE, "gin": GIN, "sgc": SGC}
