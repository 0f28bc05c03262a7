"""What methods of two views share: the graph and a diffusion of it, each with an encoder of its own."""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from src.graph import Graph
from src.models.base import Method
from src.models.encoders import ENCODERS, Embeddings
from src.ops.checks import check_choice, check_range
from src.ops.corruption import random_permutation
from src.ops.diffusion import DIFFUSIONS, Diffusion, strongest_entries
from src.ops.sparse import SparseMatrix

log = logging.getLogger(__name__)


class TwoViews(Method):
    """A method that sees a graph as it is and diffused; its embedding is the sum of both views.

    ``cache_dir`` is no hyperparameter: a checkpoint must work on a machine that lacks that folder.
    """

    def __init__(
        self,
        diffusion: str,
        strength: float,
        tolerance: float,
        top_k: int,
        cache_dir: str | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_choice("diffusion", diffusion, DIFFUSIONS)
        check_range("top_k", top_k, 0)
        self.diffused_encoder = ENCODERS[shared["encoder"]](
            *(shared[name] for name in ("num_features", "hidden_dim", "num_layers", "activation"))
        )
        self.cache_dir = cache_dir
        self._diffused: tuple[SparseMatrix, SparseMatrix | Diffusion] | None = None

    def diffused(self, graph: Graph) -> SparseMatrix | Diffusion:
        """Return the operator of the second view, made once for each graph.

        Raises:
            ValueError: If the graph is a sample of neighbours.
        """
        if not graph.adjacency.symmetric:
            raise ValueError(
                f"{type(self).__name__} diffuses over the whole graph, and this is a sample: set dataset.loader=full "
                "or rows, or choose model=ggd, dgi or dgi_bce"
            )
        if self._diffused is None or self._diffused[0] is not graph.adjacency:
            settings = {name: self.hparams[name] for name in ("diffusion", "strength", "tolerance", "top_k")}
            self._diffused = graph.adjacency, diffuse(graph.adjacency, **settings, cache_dir=self.cache_dir)
        return self._diffused[1]

    def both_views(self, graph: Graph, targets: Tensor | None) -> tuple[Embeddings, Embeddings, Embeddings, Embeddings]:
        """Return the embeddings of graph, diffused graph, corrupted graph, and corrupted diffused graph."""
        permutation = random_permutation(graph.num_nodes, graph.device)
        view = self.encoder.both_groups(graph.features, graph.adjacency, permutation, targets=targets)
        diffused = self.diffused_encoder.both_groups(graph.features, self.diffused(graph), permutation, targets=targets)
        return view[0], diffused[0], view[1], diffused[1]

    def encode_views(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Return the embeddings of all nodes in either view, each of shape (N, D')."""
        return super().encode(graph), self.diffused_encoder(graph.features, self.diffused(graph))

    def encode(self, graph: Graph) -> Tensor:
        view, diffused = self.encode_views(graph)
        return view + diffused


def diffuse(
    adjacency: SparseMatrix, diffusion: str, strength: float, tolerance: float, top_k: int, cache_dir: str | None
) -> SparseMatrix | Diffusion:
    """Return a diffusion of the graph: matrix-free with ``top_k=0``, else the largest entries of each row.

    Making those takes time that grows with N^2, so they are kept in ``cache_dir``, under a key of graph and settings.
    """
    operator = DIFFUSIONS[diffusion](adjacency, strength, tolerance)
    if top_k == 0:
        return operator
    if cache_dir is None:
        return strongest_entries(operator, top_k)
    digest = hashlib.sha256(repr((diffusion, strength, tolerance, top_k, adjacency.shape)).encode())
    for part in (adjacency.row_starts, adjacency.columns, adjacency.values):
        digest.update(part.cpu().numpy().tobytes())
    path = Path(cache_dir) / f"{diffusion}_top{top_k}_{digest.hexdigest()[:16]}.npz"
    try:
        return load(path).to(adjacency.device)
    except FileNotFoundError:
        log.info("Making the %s largest entries of each row of the diffusion, once: %s", top_k, path)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        log.info("%s can't be read (%s) and is made anew", path, error)
    matrix = strongest_entries(operator, top_k)
    save(matrix, path)
    return matrix


def load(path: Path) -> SparseMatrix:
    """Read a matrix; nothing in the file is executed."""
    csr = sp.load_npz(path)
    return SparseMatrix(
        torch.from_numpy(csr.indptr.astype(np.int64)),
        torch.from_numpy(csr.indices.astype(np.int64)),
        torch.from_numpy(csr.data),
        csr.shape,
    )


def save(matrix: SparseMatrix, path: Path) -> None:
    """Write a matrix; other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = (part.cpu().numpy() for part in (matrix.values, matrix.columns, matrix.row_starts))
    partial = path.with_suffix(f".{os.getpid()}.npz")
    sp.save_npz(partial, sp.csr_matrix(tuple(parts), shape=matrix.shape))
    partial.replace(path)
