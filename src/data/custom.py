"""A graph of one's own, from a file of edges and a file of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from src.data.datamodule import InMemoryDataModule
from src.data.readers import as_features, is_table, read_edges, read_integers, read_matrix, read_nodes
from src.ops.checks import check_choice

PARTS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}
"""Words of a column that splits the nodes, and the mask of each."""


class CustomDataModule(InMemoryDataModule):
    """A graph from files.

    Without features, X = I: a node is told by itself, Kipf & Welling (2017).

    Args:
        edges: Path of what ``src.data.readers.read_edges`` takes. Edges have no direction, and all weigh the same.
        nodes: Path of a table of numbers, with headings and a line for each node; or of a matrix, shape (N, D), see
            ``src.data.readers.read_matrix``. None: nodes are what the edges name, without features.
        id_column: Column of the table by which edges name the nodes. None: edges number its lines, from 0.
        classes: Column of the table, empty where unknown; or path of an ``.npy``, integers, shape (N,), negative where
            unknown. None: the embedding is not probed.
        split_column: Column of the table that says train, validation, test, or nothing. None: the split is drawn.
        ignored_columns: Columns of the table that are no features.
        split: A drawn one, see ``src.data.splits``.
        **shared: The arguments of ``InMemoryDataModule``.
    """

    def __init__(
        self,
        edges: str | None,
        nodes: str | None,
        id_column: str | None,
        classes: str | None,
        split_column: str | None,
        ignored_columns: Sequence[str],
        split: str,
        **shared: Any,
    ) -> None:
        super().__init__(counts={}, split="public" if split_column else split, **shared)
        if edges is None:
            raise ValueError(
                "dataset=custom needs dataset.edges=<file>, and most often dataset.nodes=<file>: "
                "conf/dataset/custom.yaml says what may be in them"
            )
        self.edges, self.nodes = Path(edges), None if nodes is None else Path(nodes)
        self.id_column, self.split_column = id_column, split_column
        self.classes_file = Path(classes) if classes is not None and classes.endswith(".npy") else None
        self.class_column = None if self.classes_file else classes
        self.ignored_columns = list(ignored_columns)
        if self.columns and (self.nodes is None or not is_table(self.nodes)):
            raise ValueError(f"dataset.nodes is {nodes}, which is no table with columns {', '.join(self.columns)}")
        if split_column is not None and classes is None:
            raise ValueError("dataset.split_column splits the nodes whose classes are known: set dataset.classes too")

    @property
    def columns(self) -> list[str]:
        """Columns of the table of nodes that are no features."""
        named = [column for column in (self.id_column, self.class_column, self.split_column) if column is not None]
        return named + self.ignored_columns

    def load(self) -> Data:
        ends, words = read_edges(self.edges)
        table, data = pd.DataFrame(), Data()
        if self.nodes is None:
            numbered = words.str.fullmatch(r"\d{1,18}").all()
            self.node_names = words.to_numpy()[np.argsort(words.to_numpy(np.int64 if numbered else str))]
            data.x = identity(len(words))
        elif is_table(self.nodes):
            table = read_nodes(self.nodes, self.columns)
            features = table.drop(columns=self.columns)
            data.x = as_features(features, self.nodes) if features.shape[1] else identity(len(table))
        else:
            data.x = read_matrix(self.nodes)
        if self.id_column is not None:
            self.node_names = self._names(table[self.id_column])
        data.edge_index = self._edge_index(ends, words, len(data.x))
        data.y = self._classes(table, len(data.x))
        if self.split_column is not None:
            for word in table[self.split_column].dropna().unique():
                check_choice(f"a word of the column {self.split_column} of {self.nodes}", word, PARTS)
            for word, mask in PARTS.items():
                data[mask] = torch.tensor((table[self.split_column] == word).to_numpy())
        return data

    def _names(self, column: pd.Series) -> np.ndarray:
        """Return the names of the nodes, each of which must be there, and only once."""
        if column.isna().any():
            raise ValueError(f"{self.nodes} has no {column.name} for {column.isna().sum():,} of its nodes")
        if column.duplicated().any():
            twice = column[column.duplicated()].iloc[0]
            raise ValueError(f"{self.nodes} has more than one node whose {column.name} is {twice!r}")
        return column.to_numpy(str)

    def _edge_index(self, ends: np.ndarray, words: pd.Index, num_nodes: int) -> Tensor:
        """Return the edges by the numbers of their ends, from what they call them."""
        names = np.arange(num_nodes).astype(str) if self.node_names is None else self.node_names
        numbers = pd.Index(names).get_indexer(words)
        unknown = words[numbers < 0]
        if len(unknown):
            known = f"has nodes 0..{num_nodes - 1}; where edges have names instead of numbers, set dataset.id_column"
            if self.id_column is not None:
                known = f"has no such {self.id_column}"
            raise ValueError(
                f"{self.edges} has edges of nodes that are not there, {len(unknown):,} in all, such as "
                f"{', '.join(map(repr, unknown[:3]))}: {self.nodes} {known}"
            )
        return torch.from_numpy(numbers[ends])

    def _classes(self, table: pd.DataFrame, num_nodes: int) -> Tensor | None:
        """Return the class of each node from 0, -1 where it is unknown; None if no classes are given."""
        if self.classes_file is not None:
            column = pd.Series(read_integers(self.classes_file))
            if len(column) != num_nodes:
                raise ValueError(f"{self.classes_file} has {len(column):,} classes, and there are {num_nodes:,} nodes")
            column = column.where(column >= 0)
        elif self.class_column is not None:
            column = table[self.class_column]
        else:
            return None
        return torch.from_numpy(pd.factorize(column, sort=True)[0].astype(np.int64))


def identity(num_nodes: int) -> Tensor:
    """Return X = I, sparse (COO), float32, shape (N, N)."""
    places = torch.arange(num_nodes).expand(2, -1)
    return torch.sparse_coo_tensor(places, torch.ones(num_nodes), (num_nodes, num_nodes))
