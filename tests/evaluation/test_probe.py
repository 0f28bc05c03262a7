"""The linear probe: what it may read, what it chooses, and that its shortcuts are exact."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from src.evaluation.probe import LinearProbe, span
from src.graph import Labels

STRENGTHS = (0.1, 1.0, 10.0)


@pytest.fixture
def labels() -> Labels:
    return Labels(torch.arange(300) % 3, torch.arange(60), torch.arange(60, 120), torch.arange(120, 300))


@pytest.fixture
def embeddings(labels: Labels) -> Tensor:
    """Noisy one-hot classes among 80 dimensions: more than training nodes."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(300, 80, generator=generator)
    x[torch.arange(300), labels.classes] += 2.5
    return x


def probe(strengths: tuple[float, ...] = STRENGTHS, l2_normalize: bool | str = False) -> LinearProbe:
    return LinearProbe(strengths, l2_normalize, 1000, "auto", exact_up_to=5_000_000, tolerance=1e-5)


def test_equals_plain_logistic_regression_on_the_centred_scaled_embeddings(embeddings: Tensor, labels: Labels) -> None:
    x = embeddings.numpy().astype(np.float64)
    x = x - x.mean(axis=0)
    x = x / np.sqrt((x**2).sum(axis=1).mean())
    plain = LogisticRegression(C=10.0, max_iter=10_000, tol=1e-8)
    plain.fit(x[labels.train], labels.classes[labels.train])
    result = probe((10.0,)).evaluate(embeddings, labels)
    # The bound of two nodes: the solvers stop at different distances from the optimum that they share.
    assert result.test_accuracy == pytest.approx(plain.score(x[labels.test], labels.classes[labels.test]), abs=2 / 180)
    assert result.converged


def test_rotation_leaves_the_solution_as_it_is(embeddings: Tensor, labels: Labels) -> None:
    x = embeddings.double().numpy()
    assert span(x[labels.train]) is None  # 60 rows are not much less than 80 columns
    x = np.hstack([x, x**2])
    basis = span(x[labels.train])
    assert basis is not None
    rotated = x @ basis
    assert rotated.shape == (300, 60)
    y = labels.classes.numpy()
    logits = []
    for z in (x, rotated):
        classifier = LogisticRegression(C=0.1, max_iter=10_000, tol=1e-10).fit(z[:60], y[:60])
        logits.append(classifier.decision_function(z))
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)


def test_scale_and_shift_of_the_embeddings_do_not_matter(embeddings: Tensor, labels: Labels) -> None:
    first, second = probe().evaluate(embeddings, labels), probe().evaluate(1000 * embeddings + 7, labels)
    assert (first.C, first.val_accuracy) == (second.C, second.val_accuracy)
    assert first.test_accuracy == pytest.approx(second.test_accuracy, abs=1 / 180)


def test_permuting_the_test_labels_changes_nothing_that_is_selected(embeddings: Tensor, labels: Labels) -> None:
    shuffled = labels.classes.clone()
    shuffled[labels.test] = shuffled[labels.test][torch.randperm(180)]
    candidates = {"noise": lambda: torch.randn(300, 80), "signal": lambda: embeddings}
    torch.manual_seed(0)
    honest = probe().evaluate_best(candidates, labels)
    torch.manual_seed(0)
    blind = probe().evaluate_best(candidates, dataclasses.replace(labels, classes=shuffled))
    assert (honest.candidate, honest.C, honest.val_accuracy) == (blind.candidate, blind.C, blind.val_accuracy)
    assert honest.test_accuracy > blind.test_accuracy


def test_the_best_candidate_on_validation_is_tested(embeddings: Tensor, labels: Labels) -> None:
    result = probe().evaluate_best({"noise": lambda: torch.randn(300, 80), "signal": lambda: embeddings}, labels)
    assert result.candidate == "signal"
    assert result.test_accuracy == probe().evaluate(embeddings, labels).test_accuracy


def test_ties_go_to_the_stronger_penalty_and_the_first_candidate(labels: Labels) -> None:
    perfect = 100 * torch.nn.functional.one_hot(labels.classes, 3).float()
    result = probe((10.0, 1.0)).evaluate_best({"a": lambda: perfect, "b": lambda: perfect}, labels)
    assert (result.candidate, result.C, result.val_accuracy) == ("a", 1.0, 1.0)


def test_l2_normalisation_ignores_the_lengths(embeddings: Tensor, labels: Labels) -> None:
    stretched = embeddings * torch.rand(300, 1).add(0.1)
    first = probe(l2_normalize=True).evaluate(embeddings, labels)
    second = probe(l2_normalize=True).evaluate(stretched, labels)
    assert (first.C, first.val_accuracy) == (second.C, second.val_accuracy)


def test_auto_normalises_where_the_validation_nodes_want_it(embeddings: Tensor, labels: Labels) -> None:
    stretched = embeddings * torch.logspace(-3, 3, 300)[torch.randperm(300), None]
    assert probe(l2_normalize="auto").evaluate(stretched, labels) == probe(l2_normalize=True).evaluate(
        stretched, labels
    )
    perfect = torch.nn.functional.one_hot(labels.classes, 3).float()
    assert not probe(l2_normalize="auto").evaluate(perfect, labels).l2_normalize  # a tie
    with pytest.raises(ValueError, match="'maybe'; it can be true, false or auto"):
        probe(l2_normalize="maybe")


def test_a_bound_on_steps_that_is_met_is_reported(embeddings: Tensor, labels: Labels) -> None:
    assert (
        not LinearProbe((1000.0,), False, 2, "exact", exact_up_to=0, tolerance=0).evaluate(embeddings, labels).converged
    )


def test_constant_embeddings_are_no_error(labels: Labels) -> None:
    assert probe().evaluate(torch.ones(300, 4), labels).test_accuracy == pytest.approx(1 / 3)
