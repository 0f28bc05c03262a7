"""Kernels for a GPU against those for the CPU: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from src.graph import Graph
from src.models import GGD
from src.ops.corruption import inverse_permutation
from src.ops.discriminate import discriminate, discriminate_backward
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import SparseMatrix
from tests.conftest import SHARED

triton = pytest.importorskip("triton", reason="needs Triton: pip install triton (no GPU)")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    """A process of its own, which imports Triton as its interpreter if there is no GPU."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        with pytest.MonkeyPatch.context() as patch:
            if DEVICE == "cpu":
                patch.setenv("TRITON_INTERPRET", "1")
            executor.submit(int).result()  # the process starts
        yield executor


def compare(
    seed: int, num_nodes: int, width: int, symmetric: bool, permuted: bool, programs: int, index: torch.dtype
) -> None:
    from src.ops import gpu_kernels

    gpu_kernels.PROGRAMS = programs
    torch.manual_seed(seed)
    matrix = normalised_adjacency(torch.randint(num_nodes, (2, 2 * num_nodes)), num_nodes).to(torch.float64)
    if not symmetric:
        matrix = matrix.with_values(torch.randn(len(matrix.values), dtype=torch.float64))
    row_starts, columns = matrix.row_starts.to(index), matrix.columns.to(index)
    matrix = SparseMatrix(row_starts, columns, matrix.values, matrix.shape, symmetric)
    permutation = torch.randperm(num_nodes) if permuted else None
    shapes = (num_nodes, width), (width,), (1,), (width,)
    dense, bias, slope, vector = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    above, logits = discriminate(matrix, permutation, dense, bias, slope, vector)
    gradient = torch.randn(len(logits), dtype=torch.float64)
    dense_gradient, sums = discriminate_backward(matrix, permutation, dense, slope, vector, above, gradient)

    on_device: Callable[[Any], Any] = lambda x: None if x is None else x.to(DEVICE)  # noqa: E731
    matrix, permutation, dense, bias, slope, vector, gradient = map(
        on_device, (matrix, permutation, dense, bias, slope, vector, gradient)
    )
    found_above, found_logits = gpu_kernels.discriminate(matrix, permutation, dense, bias, slope, vector)
    inverse = None if permutation is None else inverse_permutation(permutation)
    found = gpu_kernels.discriminate_backward(matrix, inverse, dense, slope, vector, found_above, gradient)
    for one, other in zip((found_above, found_logits, *found), (above, logits, dense_gradient, sums), strict=True):
        torch.testing.assert_close(one.cpu(), other)


@given(
    seed=st.integers(0, 999),
    num_nodes=st.integers(1, 30),
    width=st.sampled_from([1, 20, 64, 1500]),
    symmetric=st.booleans(),
    permuted=st.booleans(),
    programs=st.sampled_from([1, 7, 1024]),
    index=st.sampled_from([torch.int32, torch.int64]),
)
@settings(deadline=None, max_examples=20)
def test_results_equal_those_of_the_kernels_for_the_cpu(process: Executor, **case: Any) -> None:
    process.submit(compare, **case).result()


@pytest.mark.parametrize("arch", [75, 80, 90, 100])
@pytest.mark.parametrize("kernel", ["_discriminate", "_discriminate_backward"])
def test_kernels_compile_for_nvidia(kernel: str, arch: int) -> None:
    from src.ops import gpu_kernels

    function = getattr(gpu_kernels, kernel)
    special = {"starts": "*i64", "columns": "*i64", "order": "*i64", "inverse": "*i64", "above": "*u8"}
    special |= {"num_rows": "i32", "num_logits": "i32", "width": "i32", "TWO": "constexpr", "BLOCK": "constexpr"}
    source = triton.compiler.ASTSource(
        function,
        {name: special.get(name, "*fp32") for name in function.arg_names},
        {name: value for name, value in {"TWO": True, "BLOCK": 512}.items() if name in function.arg_names},
    )
    compiled = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", arch, 32))
    assert compiled.asm["cubin"].startswith(b"\x7fELF")


@needs_gpu
def test_a_step_on_a_gpu_equals_one_on_the_cpu(small_graph: Graph) -> None:
    model = GGD(24, projector_layers=1, projector_activation="none", aggregation="sum", feature_drop=0.0,
                edge_drop=0.0, hops=1, **SHARED).double()  # fmt: skip
    graph, permutation = small_graph.to(torch.float64), torch.randperm(60)

    def logits_and_gradients(model: GGD, graph: Graph, permutation: torch.Tensor) -> list[torch.Tensor]:
        groups = model.encoder.both_groups(graph.features, graph.adjacency, permutation)
        logits = torch.cat(model.discriminator(*groups))
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    expected = logits_and_gradients(model, graph, permutation)
    found = logits_and_gradients(copy.deepcopy(model).cuda(), graph.to("cuda"), permutation.cuda())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
