"""Products in blocks of columns equal those made at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from src.graph import Graph
from src.models.encoders import GCN, SGC
from src.ops.blocks import MappedMatrix, matrix_product
from src.ops.propagation import add_power, graph_power


def mapped(graph: Graph, folder: Path, memory_mb: float) -> MappedMatrix:
    adjacency = graph.adjacency
    return MappedMatrix(
        adjacency.row_starts, adjacency.columns.int(), adjacency.values, adjacency.shape, folder, memory_mb
    )


@pytest.fixture(params=[1000, 60 * 4 * 2 * 5e-6, 1e-6], ids=["one block", "blocks of 5", "blocks of 1, in files"])
def adjacency(request: pytest.FixtureRequest, small_graph: Graph, tmp_path: Path) -> MappedMatrix:
    return mapped(small_graph, tmp_path, request.param)


@pytest.mark.parametrize("encoder", [GCN, SGC])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_embedding_in_blocks(small_graph: Graph, adjacency: MappedMatrix, encoder: type[GCN], num_layers: int) -> None:
    model = encoder(24, 12, num_layers, "prelu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        embeddings = model(small_graph.features, adjacency)
        torch.testing.assert_close(embeddings, model(small_graph.features, small_graph.adjacency), atol=1e-5, rtol=1e-5)
    assert model(small_graph.features, adjacency).requires_grad  # made at once, where a gradient is wanted


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_power_in_blocks(small_graph: Graph, adjacency: MappedMatrix, hops: int) -> None:
    x = torch.randn(60, 12)
    expected = graph_power(small_graph.adjacency, x, hops) + x
    torch.testing.assert_close(add_power(adjacency, x, hops), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(add_power(small_graph.adjacency, x, hops), expected)


def test_large_results_lie_in_files_that_vanish(small_graph: Graph, tmp_path: Path) -> None:
    def mapped_bytes() -> int:
        """Bytes of deleted files of the folder that this process still maps."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = [line.split()[0].split("-") for line in lines if str(tmp_path) in line]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc/self/maps, which is Linux's")
    out = mapped(small_graph, tmp_path, 1e-6).empty(12)
    assert out.shape == (60, 12)
    assert mapped_bytes() > 0
    assert os.listdir(tmp_path) == []
    del out
    assert mapped_bytes() == 0
    assert mapped(small_graph, tmp_path, 1000).empty(12).shape == (60, 12)
    assert mapped_bytes() == 0


def test_a_result_that_the_disk_can_not_hold(small_graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"needs 2\.4e\+08 GB of disk, and .* GB are free"):
        mapped(small_graph, tmp_path, 1).empty(10**15)
    with pytest.raises(OSError, match=r"needs 4\.8e\+08 GB of disk, and .* GB are free"):
        mapped(small_graph, tmp_path, 1).check_room(10**15, 2)
    mapped(small_graph, tmp_path, 1e18).check_room(10**15, 2)  # it is all in memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_product_of_less_precise_features(dtype: torch.dtype) -> None:
    x, weight = torch.randn(50, 8).to(dtype), torch.randn(8, 3)
    torch.testing.assert_close(matrix_product(x, weight), x.float() @ weight)
    assert matrix_product(x, weight).dtype is torch.float32


def test_a_matrix_stays_mapped_where_nothing_changes(small_graph: Graph, tmp_path: Path) -> None:
    adjacency = mapped(small_graph, tmp_path, 1)
    assert adjacency.to("cpu") is adjacency
