"""The linear probe: logistic regression on frozen embeddings."""

from __future__ import annotations

import copy
import functools
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from src.evaluation.streaming import Solution, StreamingRegression
from src.graph import Labels

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProbeResult:
    """What the probe found.

    Attributes:
        val_accuracy, test_accuracy: In [0, 1].
        C: Inverse strength of the L2 penalty, chosen on the validation nodes.
        l2_normalize: Whether each embedding was divided by its length, likewise.
        converged: Whether the solver met its tolerance at that C.
        candidate: Which of several embeddings was chosen, also on the validation nodes; empty for a single one.
    """

    val_accuracy: float
    test_accuracy: float
    C: float
    l2_normalize: bool
    converged: bool
    candidate: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Choice(NamedTuple):
    """What the validation nodes chose for one matrix of embeddings, and what it predicts for the test nodes."""

    val_accuracy: float
    C: float
    l2_normalize: bool
    converged: bool
    test_predictions: np.ndarray


class Attempt(NamedTuple):
    """A streaming fit and its validation accuracy."""

    val_accuracy: float
    strength: float
    solution: Solution
    regression: StreamingRegression

    @property
    def rank(self) -> tuple[float, float]:
        """What is larger for the better of two attempts."""
        return self.val_accuracy, -self.strength


@dataclass(frozen=True)
class LinearProbe:
    """Multinomial logistic regression, fitted on the training nodes, chosen on the validation nodes, tested once.

    Embeddings are centred and scaled to a root mean square length of 1, one number for the whole matrix, so that one
    grid of C serves every method. The centre moves into the intercept, which carries no penalty.

    There are two ways to the solution. ``exact`` is scikit-learn's: all strengths, with and without normalisation,
    centre and scale over all nodes. ``streaming`` is for matrices that should not be copied, or not even fit into
    memory: it reads training, validation and test nodes only, in pieces; centre and scale are those of the training
    nodes. As each fit takes seconds to minutes there, l2_normalize is decided at the middle strength, and from there
    the strength is raised as long as that is better on validation; if the first raise is not, it is lowered instead.

    Args:
        strengths: Values of C to choose from. Of equal ones on validation, the smallest wins.
        l2_normalize: Divide each embedding by its length first: true, false, or ``auto``, on which the validation
            nodes decide; of equal ones, the embedding as it is wins.
        max_iter: Bound on the steps of L-BFGS.
        solver: ``exact``, ``streaming``, or ``auto``: streaming where the training nodes are more than the columns of
            the matrix, and their entries more than ``exact_up_to``.
        exact_up_to: Entries of the training rows, nodes times D', up to which ``auto`` is exact.
        tolerance: A streaming fit ends where a step lowers the loss by less, relative to the loss where that is
            above 1.
    """

    strengths: Sequence[float]
    l2_normalize: bool | str
    max_iter: int
    solver: str
    exact_up_to: int
    tolerance: float

    def __post_init__(self) -> None:
        if self.l2_normalize not in (True, False, "auto"):
            raise ValueError(f"evaluation.probe.l2_normalize is {self.l2_normalize!r}; it can be true, false or auto")
        if self.solver not in ("auto", "exact", "streaming"):
            raise ValueError(f"evaluation.probe.solver is {self.solver!r}; it can be auto, exact or streaming")

    def evaluate(self, embeddings: Tensor, labels: Labels) -> ProbeResult:
        """Probe one matrix of embeddings, shape (N, D')."""
        return self.evaluate_best({"": lambda: embeddings}, labels)

    def evaluate_best(self, candidates: Mapping[str, Callable[[], Tensor]], labels: Labels) -> ProbeResult:
        """Probe several matrices, each of shape (N, D'), and test the one that is best on the validation nodes.

        Args:
            candidates: Name to a function that makes the matrix, called in order; of equal ones, the first wins.
            labels: Classes and split. Test labels are read for the chosen candidate only, after the choice.
        """
        best_name, best = "", None
        for name, make in candidates.items():
            embeddings = make().detach()
            rows, width = len(labels.train), embeddings.shape[1]
            large = rows > width and rows * width > self.exact_up_to
            streaming = large if self.solver == "auto" else self.solver == "streaming"
            choice = (self._choose_streaming if streaming else self._choose_exact)(embeddings, labels)
            if best is None or choice.val_accuracy > best.val_accuracy:
                best_name, best = name, choice
        assert best is not None
        return ProbeResult(
            val_accuracy=best.val_accuracy,
            test_accuracy=float(labels.score(best.test_predictions, labels.classes[labels.test].numpy())),
            C=best.C,
            l2_normalize=best.l2_normalize,
            converged=best.converged,
            candidate=best_name,
        )

    @property
    def _normalisations(self) -> tuple[bool, ...]:
        return (False, True) if self.l2_normalize == "auto" else (bool(self.l2_normalize),)

    def _choose_exact(self, embeddings: Tensor, labels: Labels) -> Choice:
        matrix = embeddings.cpu().numpy()
        # One thread for each fit, and one fit for each thread: its products are so small that two threads make it four
        # times slower, measured on 1,375 x 1,024.
        with ThreadPoolExecutor(torch.get_num_threads()) as pool, threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # recorded as ``converged``
            choose = functools.partial(self._choose_strength, matrix, labels)
            choices = list(pool.map(choose, self._normalisations))
        return max(choices, key=lambda choice: choice.val_accuracy)

    def _choose_strength(self, matrix: np.ndarray, labels: Labels, l2_normalize: bool) -> Choice:
        classes, *parts = (part.numpy() for part in (labels.classes, labels.train, labels.validation, labels.test))
        train, validation, _ = parts
        x = scale(matrix, l2_normalize)
        basis = span(x[train])
        x_train, x_validation, x_test = (x[nodes] if basis is None else x[nodes] @ basis for nodes in parts)
        classifier = LogisticRegression(max_iter=self.max_iter, warm_start=True)
        best_accuracy, best = -1.0, classifier
        for strength in sorted(self.strengths):  # each fit starts from the one before, which halves the time
            classifier.set_params(C=strength).fit(x_train, classes[train])
            accuracy = float(np.mean(classifier.predict(x_validation) == classes[validation]))
            if accuracy > best_accuracy:
                best_accuracy, best = accuracy, copy.deepcopy(classifier)
        converged = bool(best.n_iter_.max() < self.max_iter)
        return Choice(best_accuracy, float(best.C), l2_normalize, converged, best.predict(x_test))

    def _choose_streaming(self, embeddings: Tensor, labels: Labels) -> Choice:
        strengths = sorted(self.strengths)
        middle = len(strengths) // 2

        def regression(l2_normalize: bool) -> StreamingRegression:
            classes = labels.classes[labels.train]
            return StreamingRegression(embeddings, labels.train, classes, l2_normalize, self.tolerance, self.max_iter)

        def attempt(regression: StreamingRegression, strength: float, start: Solution | None) -> Attempt:
            started = time.perf_counter()
            solution = regression.fit(strength, start)
            predictions = regression.predict(solution, labels.validation)
            accuracy = float((predictions == labels.classes[labels.validation]).double().mean())
            setting = f"C={strength:g}, l2_normalize={str(regression.rows.l2_normalize).lower()}"
            seconds = time.perf_counter() - started
            log.info(
                "probe: %s: validation accuracy %.2f %%, %d steps, %.1f s",
                setting,
                100 * accuracy,
                solution.steps,
                seconds,
            )
            return Attempt(accuracy, strength, solution, regression)

        best = max(
            (attempt(regression(l2_normalize), strengths[middle], None) for l2_normalize in self._normalisations),
            key=lambda attempt: attempt.val_accuracy,
        )
        for way in (strengths[middle + 1 :], strengths[:middle][::-1]):
            for strength in way:
                found = attempt(best.regression, strength, best.solution)
                if found.rank < best.rank:
                    break
                best = found
            if best.strength > strengths[middle]:
                break
        return Choice(
            val_accuracy=best.val_accuracy,
            C=best.strength,
            l2_normalize=best.regression.rows.l2_normalize,
            converged=best.solution.converged,
            test_predictions=best.regression.predict(best.solution, labels.test).numpy(),
        )


def scale(x: np.ndarray, l2_normalize: bool) -> np.ndarray:
    """Divide each row by its length if asked to, then centre, and scale to a root mean square length of 1."""
    if l2_normalize:
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x = x - x.mean(axis=0)
    x /= max(np.sqrt((x**2).sum(axis=1).mean()), 1e-12)
    return x


def span(rows: np.ndarray) -> np.ndarray | None:
    """Return an orthonormal basis of the rows' span, one column for each, or None if that saves less than half.

    The penalised solution lies in the span of the training rows and does not change under rotation, so to turn the
    space until they need no more columns than there are of them is exact, and 10 times faster on 140 rows of 1,433.
    """
    return np.linalg.qr(rows.T)[0] if 2 * len(rows) <= rows.shape[1] else None
