"""PyG's convolutions."""

from __future__ import annotations

import itertools
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP, GATConv, GINConv, SAGEConv

from src.models.encoders.base import ACTIVATIONS, Encoder
from src.ops.diffusion import Diffusion
from src.ops.sparse import SparseMatrix, to_dense


class PyGEncoder(Encoder):
    """A stack of one of PyG's convolutions. It sees which nodes are joined, not the weights of the edges.

    What sums over neighbours is given a matrix, which saves PyG a row of features for each edge: a step of SAGE on
    Computers takes 0.9 instead of 4.2 s. Not under autocast, since half-precise products with it do not exist.
    """

    sums = True

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int, activation: str) -> None:
        super().__init__(num_features, hidden_dim, num_layers, activation)
        widths = [num_features] + [hidden_dim] * num_layers
        self.convolutions = nn.ModuleList(self.convolution(a, b) for a, b in itertools.pairwise(widths))
        self.activations = nn.ModuleList(ACTIVATIONS[activation]() for _ in range(num_layers))

    @staticmethod
    @abstractmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        """Return one layer, without activation."""

    def forward(self, features: Tensor | SparseMatrix, adjacency: SparseMatrix | Diffusion) -> Tensor:
        if isinstance(adjacency, Diffusion):
            raise ValueError(
                f"{type(self).__name__} needs edges, and a matrix-free diffusion has none: set model.top_k=32, or "
                "model.encoder=gcn or sgc"
            )
        x = to_dense(features)
        as_matrix = self.sums and not torch.is_autocast_enabled(x.device.type)
        edges = adjacency.edge_matrix if as_matrix else adjacency.edge_index
        for convolution, activation in zip(self.convolutions, self.activations, strict=True):
            x = activation(convolution(x, edges))
        return x


class GAT(PyGEncoder):
    """Attention over the neighbours, Veličković et al. (2018), with one head."""

    sums = False

    @staticmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        return GATConv(in_dim, out_dim)


class SAGE(PyGEncoder):
    """The mean of the neighbours beside the node itself, Hamilton et al. (2017)."""

    @staticmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        return SAGEConv(in_dim, out_dim)


class GIN(PyGEncoder):
    """The sum of a node and its neighbours through two linear layers, Xu et al. (2019).

    Without batch normalisation: it would tell the two groups apart by their statistics.
    """

    @staticmethod
    def convolution(in_dim: int, out_dim: int) -> nn.Module:
        return GINConv(MLP([in_dim, out_dim, out_dim], norm=None))
