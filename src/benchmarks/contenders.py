"""Who is measured: our method, GGD as it is published, and PyG's Deep Graph Infomax; each a few actions by name.

The actions are ``step`` (loss, gradient, update of the parameters), ``prepare`` (the normalised adjacency from the
edges), ``embed`` and ``power`` (A^hops H). PyG's has only a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import DeepGraphInfomax, GCNConv

from src.benchmarks.as_published import AsPublished, adjacency_as_published, power
from src.graph import Graph
from src.models import Method
from src.ops.propagation import graph_power, normalised_adjacency
from src.ops.sparse import to_dense

Actions = Mapping[str, Callable[[], object]]
Settings = Mapping[str, Any]


def ours(model: Method, graph: Graph, hops: int) -> Actions:
    """Return the actions of a method on a graph."""
    edges, h = graph.adjacency.edge_index, torch.randn(graph.num_nodes, model.hparams["hidden_dim"]).to(graph.device)
    return {
        "step": step_of(lambda: model.loss(graph), model.configure_optimizers()),
        "prepare": lambda: normalised_adjacency(edges, graph.num_nodes),
        "embed": torch.no_grad()(lambda: model.embed(graph)),
        "power": lambda: graph_power(graph.adjacency, h, hops),
    }


def as_published(graph: Graph, settings: Settings, hops: int) -> Actions:
    """Return the actions of the plain algorithm, on dense features."""
    x, num_nodes = to_dense(graph.features), graph.num_nodes
    edges, h = graph.adjacency.edge_index.cpu(), torch.randn(num_nodes, settings["hidden_dim"]).to(x.device)
    adjacency = adjacency_as_published(edges, num_nodes).to(x.device)
    plain = AsPublished(x.shape[1], settings["hidden_dim"], settings["num_layers"], settings["projector_layers"]).to(
        x.device
    )

    def loss() -> Tensor:
        kept_columns = torch.ones(x.shape[1], device=x.device)
        kept_columns[torch.randperm(x.shape[1])[: int(settings["feature_drop"] * x.shape[1])]] = 0
        return plain(x, adjacency, torch.randperm(num_nodes, device=x.device), kept_columns)

    return {
        "step": step_of(loss, torch.optim.Adam(plain.parameters(), lr=settings["learning_rate"])),
        "prepare": lambda: adjacency_as_published(edges, num_nodes),
        "embed": torch.no_grad()(lambda: plain.embed(x, adjacency, settings["hops"])),
        "power": lambda: power(adjacency, h, hops),
    }


class PyGEncoder(nn.Module):
    """GCN layers as in PyG's example of Deep Graph Infomax, which keep the normalised edges."""

    def __init__(self, num_features: int, hidden_dim: int, num_layers: int) -> None:
        super().__init__()
        widths = [num_features] + [hidden_dim] * num_layers
        self.layers = nn.ModuleList(GCNConv(a, b, cached=True) for a, b in itertools.pairwise(widths))
        self.activations = nn.ModuleList(nn.PReLU(hidden_dim) for _ in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = activation(layer(x, edge_index))
        return x


def pyg(graph: Graph, settings: Settings, hops: int) -> Actions:
    """Return the step of ``torch_geometric.nn.DeepGraphInfomax``, on dense features."""
    x, edges = to_dense(graph.features), graph.adjacency.edge_index
    infomax = DeepGraphInfomax(
        settings["hidden_dim"],
        PyGEncoder(x.shape[1], settings["hidden_dim"], settings["num_layers"]),
        summary=lambda z, *_: z.mean(dim=0).sigmoid(),
        corruption=lambda x, edge_index: (x[torch.randperm(x.shape[0], device=x.device)], edge_index),
    ).to(x.device)
    optimizer = torch.optim.Adam(infomax.parameters(), lr=settings["learning_rate"])
    return {"step": step_of(lambda: infomax.loss(*infomax(x, edges)), optimizer)}


RIVALS: dict[str, Callable[[Graph, Settings, int], Actions]] = {"as_published": as_published, "pyg": pyg}
"""By name: of the graph, the settings of a GGD, and the hops of ``power``."""


def step_of(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return one optimiser step as a function."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step
