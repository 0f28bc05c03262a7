"""The probe in pieces: the same solution as scikit-learn's, read from the rows of the split alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy

from src.evaluation import streaming
from src.evaluation.probe import LinearProbe
from src.evaluation.streaming import Rows, StreamingRegression, moments
from src.graph import Labels

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)


@pytest.fixture
def labels() -> Labels:
    """Every second of 1,200 nodes is in the split; the classes are of unequal size."""
    classes = (torch.rand(1200, generator=torch.Generator().manual_seed(0)) ** 2 * 4).long()
    return Labels(classes, torch.arange(0, 600, 2), torch.arange(600, 800, 2), torch.arange(800, 1200, 2))


@pytest.fixture
def embeddings(labels: Labels) -> Tensor:
    """Noisy classes among 24 dimensions whose variances lie orders of magnitude apart, away from the origin."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1200, 24, generator=generator)
    x[torch.arange(1200), labels.classes] += 1.5
    return x @ torch.randn(24, 24, generator=generator) * torch.logspace(0, -2, 24) + 3


def regression(embeddings: Tensor, labels: Labels, tolerance: float = 1e-7) -> StreamingRegression:
    return StreamingRegression(embeddings, labels.train, labels.classes[labels.train], False, tolerance, max_iter=1000)


def probe(strengths: tuple[float, ...] = STRENGTHS, l2_normalize: bool | str = False, solver: str = "streaming"):
    return LinearProbe(strengths, l2_normalize, 1000, solver, exact_up_to=5_000_000, tolerance=1e-6)


def test_loss_and_gradient_are_those_of_plain_cross_entropy(embeddings: Tensor, labels: Labels) -> None:
    fitted = regression(embeddings, labels)
    x = embeddings[labels.train].double()
    x = x - x.mean(dim=0)
    x = x / x.square().sum(dim=1).mean().sqrt()
    coefficients = torch.randn(4, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    expected = cross_entropy(x @ coefficients[:, :-1].T + coefficients[:, -1], labels.classes[labels.train])
    expected.backward()
    loss, gradient = fitted.loss_and_gradient(coefficients.detach())
    assert loss == pytest.approx(expected.item(), rel=1e-5)  # float32 has 7 digits
    torch.testing.assert_close(gradient, coefficients.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_the_solution_is_that_of_scikit_learn(
    embeddings: Tensor, labels: Labels, num_classes: int, strength: float
) -> None:
    labels = dataclasses.replace(
        labels, classes=labels.classes.clamp(max=num_classes - 1) + 5
    )  # classes 0-4 are unseen
    fitted = regression(embeddings, labels)
    solution = fitted.fit(strength)
    x = torch.cat(list(fitted.rows)).double().numpy()
    plain = LogisticRegression(C=strength, tol=1e-8, max_iter=10_000).fit(x, labels.classes[labels.train].numpy())
    probabilities = (torch.from_numpy(x) @ solution.coefficients[:, :-1].T + solution.coefficients[:, -1]).softmax(1)
    # A step of less than 1e-7 in the loss leaves about 1e-5 in loss, the square root of which is left in probabilities.
    np.testing.assert_allclose(probabilities, plain.predict_proba(x), atol=5e-3)
    assert solution.converged
    assert set(fitted.predict(solution, labels.test).tolist()) <= set(labels.classes[labels.train].tolist())


def test_a_fit_goes_on_from_another(embeddings: Tensor, labels: Labels) -> None:
    fitted = regression(embeddings, labels)
    cold, near = fitted.fit(10.0), fitted.fit(3.0)
    warm = fitted.fit(10.0, near)
    assert 0 < fitted.fit(10.0, cold).steps < warm.steps < cold.steps
    torch.testing.assert_close(
        fitted.loss_and_gradient(warm.coefficients)[0],
        fitted.loss_and_gradient(cold.coefficients)[0],
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.parametrize("kept_bytes", [0, 2**30])
@pytest.mark.parametrize("rows", [1, 7, 299, 300])
def test_the_size_of_a_piece_does_not_matter(
    embeddings: Tensor, labels: Labels, rows: int, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coefficients = torch.randn(4, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    loss, gradient = regression(embeddings, labels).loss_and_gradient(coefficients)
    monkeypatch.setattr(streaming, "PIECE_BYTES", rows * 24 * 4)
    monkeypatch.setattr(streaming, "KEPT_BYTES", kept_bytes)
    fitted = regression(embeddings, labels)
    assert isinstance(fitted.pieces, Rows if kept_bytes == 0 else list)
    assert len(next(iter(fitted.pieces))) == rows
    found = fitted.loss_and_gradient(coefficients)
    assert found[0] == pytest.approx(loss, rel=1e-5)  # float32 has 7 digits
    torch.testing.assert_close(found[1], gradient, rtol=1e-4, atol=1e-6)


def test_moments_keep_a_small_variance_beside_a_large_mean() -> None:
    x = torch.randn(500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float() + 1000
    mean, covariance = moments(Rows(x, torch.arange(500), False, torch.zeros(3), torch.ones(())))
    np.testing.assert_allclose(mean, x.double().mean(dim=0), rtol=1e-7)
    np.testing.assert_allclose(covariance, np.cov(x.double().numpy().T, bias=True), atol=1e-4)


def test_only_the_rows_of_the_split_are_read_from_a_memory_map(
    embeddings: Tensor, labels: Labels, tmp_path: Path
) -> None:
    half = embeddings.half()
    half[1::2] = torch.nan
    np.save(tmp_path / "embeddings.npy", half.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "embeddings.npy", mmap_mode="c"))
    found = probe(l2_normalize="auto").evaluate(mapped, labels)
    assert found == probe(l2_normalize="auto").evaluate(embeddings.half().float(), labels)
    half[labels.test[3]] = torch.inf
    with pytest.raises(ValueError, match=f"embedding of node {labels.test[3]} is not finite"):
        probe().evaluate(half, labels)


def test_the_search_finds_what_the_whole_grid_finds(embeddings: Tensor, labels: Labels) -> None:
    found, exact = probe().evaluate(embeddings, labels), probe(solver="exact").evaluate(embeddings, labels)
    singles = [probe((strength,)).evaluate(embeddings, labels).val_accuracy for strength in STRENGTHS]
    assert found.val_accuracy == pytest.approx(max(singles), abs=1 / 100)  # a node: fits end a little off the optimum
    assert found.C in (STRENGTHS[singles.index(max(singles))], exact.C)
    assert found.test_accuracy == pytest.approx(exact.test_accuracy, abs=3 / 200)  # three nodes: the statistics differ
    assert found.converged


@pytest.mark.parametrize("signal", [0.0, 100.0])
def test_ties_go_to_the_stronger_penalty_the_plain_rows_and_the_first_candidate(labels: Labels, signal: float) -> None:
    constant_or_perfect = signal * torch.nn.functional.one_hot(labels.classes, 4).float()
    candidates = {"a": lambda: constant_or_perfect, "b": lambda: constant_or_perfect}
    result = probe((0.1, 1.0, 10.0), l2_normalize="auto").evaluate_best(candidates, labels)
    assert (result.C, result.l2_normalize, result.candidate) == (0.1, False, "a")


def test_normalises_where_the_validation_nodes_want_it(embeddings: Tensor, labels: Labels) -> None:
    directions = embeddings - embeddings.mean(dim=0)
    stretched = directions * torch.logspace(-3, 3, 1200)[torch.randperm(1200), None]
    found = probe(l2_normalize="auto").evaluate(stretched, labels)
    assert found.l2_normalize
    assert found == probe(l2_normalize=True).evaluate(stretched, labels)


def test_permuting_the_test_labels_changes_nothing_that_is_selected(embeddings: Tensor, labels: Labels) -> None:
    shuffled = labels.classes.clone()
    shuffled[labels.test] = shuffled[labels.test].flip(0)
    candidates = {"half": lambda: embeddings[:, :12], "all": lambda: embeddings}
    honest = probe(l2_normalize="auto").evaluate_best(candidates, labels)
    blind = probe(l2_normalize="auto").evaluate_best(candidates, dataclasses.replace(labels, classes=shuffled))
    assert dataclasses.replace(honest, test_accuracy=0) == dataclasses.replace(blind, test_accuracy=0)
    assert honest.candidate == "all"
    assert honest.test_accuracy > blind.test_accuracy


def test_auto_streams_above_the_limit_where_rows_outnumber_columns(
    embeddings: Tensor, labels: Labels, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for columns, limit, streams in [(24, 300 * 24, False), (24, 300 * 24 - 1, True), (300, 1, False)]:
        caplog.clear()
        x = embeddings.repeat(1, 13)[:, :columns]
        LinearProbe((1.0,), False, 50, "auto", exact_up_to=limit, tolerance=1e-3).evaluate(x, labels)
        assert ("C=1, l2_normalize=false: validation accuracy" in caplog.text) == streams
    with pytest.raises(ValueError, match="solver is 'fast'; it can be auto, exact or streaming"):
        probe(solver="fast")


def test_a_bound_on_steps_that_is_met_is_reported(embeddings: Tensor, labels: Labels) -> None:
    bounded = LinearProbe((1000.0,), False, 2, "streaming", exact_up_to=0, tolerance=1e-9)
    assert not bounded.evaluate(embeddings, labels).converged


def test_training_nodes_of_one_class_are_an_error(embeddings: Tensor, labels: Labels) -> None:
    with pytest.raises(ValueError, match=r"all of class \[7\]; a probe needs two or more"):
        regression(embeddings, dataclasses.replace(labels, classes=torch.full((1200,), 7)))
