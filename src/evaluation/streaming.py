"""Multinomial logistic regression on so many rows that they are read in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

PIECE_BYTES = 2**22
"""Size of a piece of rows in float32. Both products of a step find it in the cache: 64 MB take 15 % longer."""

KEPT_BYTES = 2**30
"""Size in float32 up to which the training rows stay in memory; above it, each step of the solver reads them anew."""


@dataclass(frozen=True)
class Rows:
    """Embeddings of some nodes, less ``centre`` and divided by ``scale``, in pieces as often as they are iterated over.

    No other row is read, so that the embeddings may be a memory map much larger than memory.

    Attributes:
        embeddings: Floating point, shape (N, D').
        nodes: int64, sorted (which a disk likes), shape (n,).
        l2_normalize: Divide each row by its length first.
        centre, scale: float32, shapes (D') and ().
    """

    embeddings: Tensor
    nodes: Tensor
    l2_normalize: bool
    centre: Tensor
    scale: Tensor

    @property
    def nbytes(self) -> int:
        """Size of all rows in float32."""
        return 4 * len(self.nodes) * self.embeddings.shape[1]

    def split(self, x: Tensor) -> Sequence[Tensor]:
        """Cut a tensor of shape (n, ...) into the pieces that the rows come in."""
        return x.split(max(1, PIECE_BYTES // (4 * self.embeddings.shape[1])))

    def __iter__(self) -> Iterator[Tensor]:
        """Yield pieces in float32, shape (any, D').

        Raises:
            ValueError: If a row is not finite.
        """
        for nodes in self.split(self.nodes):
            x = self.embeddings[nodes].cpu().float()
            if not x.isfinite().all():
                node = int(nodes[(~x.isfinite()).any(dim=1)][0])
                raise ValueError(f"the embedding of node {node} is not finite: lower model.learning_rate")
            if self.l2_normalize:
                x /= x.norm(dim=1, keepdim=True).clamp(min=1e-12)
            yield x.sub_(self.centre).div_(self.scale)


@dataclass(frozen=True)
class Solution:
    """Weights and intercepts of a fit.

    Attributes:
        coefficients: float64, shape (K, D' + 1); the last column is the intercepts.
        steps: Of L-BFGS.
        converged: Whether the tolerance was met.
    """

    coefficients: Tensor
    steps: int
    converged: bool


class StreamingRegression:
    """Minimise the mean cross-entropy of softmax(W x + b) + |W|^2 / (2 C n) over n rows x that are read in pieces.

    Its minimum is that of scikit-learn's ``LogisticRegression``. The rows are centred and scaled to a root mean square
    length of 1 by the statistics of the training rows. Loss and gradient of a piece are computed in float32 and added
    up in float64.

    L-BFGS works along the principal components of the rows, on weights in units of 1 / sqrt(p (1 - p) v + 1 / (C n)),
    with p the share of a class and v the variance of a component: p (1 - p) v + 1 / (C n) is the curvature of the
    objective where all rows are given the shares of the classes. These units save most of the steps, since the
    variances of an embedding lie orders of magnitude apart.

    Args:
        embeddings: Floating point, shape (N, D').
        nodes: Training nodes, int64, sorted, shape (n,).
        classes: Their classes, int64, shape (n,).
        l2_normalize: Divide each row by its length first.
        tolerance: A fit ends where a step lowers the loss by less, relative to the loss where that is above 1.
        max_iter: Bound on the steps of a fit.

    Raises:
        ValueError: If the training nodes have less than two classes, or a row is not finite.
    """

    def __init__(
        self, embeddings: Tensor, nodes: Tensor, classes: Tensor, l2_normalize: bool, tolerance: float, max_iter: int
    ) -> None:
        self.tolerance, self.max_iter = tolerance, max_iter
        self.seen, targets, counts = classes.unique(return_inverse=True, return_counts=True)
        if len(self.seen) < 2:
            raise ValueError(f"the training nodes are all of class {self.seen.tolist()}; a probe needs two or more")
        self.num_rows = len(nodes)
        raw = Rows(embeddings, nodes, l2_normalize, torch.zeros(embeddings.shape[1]), torch.ones(()))
        centre, covariance = moments(raw)
        scale = covariance.trace().sqrt().clamp(min=1e-12)
        self.rows = replace(raw, centre=centre.float(), scale=scale.float())
        self.pieces: Iterable[Tensor] = list(self.rows) if self.rows.nbytes <= KEPT_BYTES else self.rows
        self.targets = self.rows.split(targets[:, None])
        variances, components = torch.linalg.eigh(covariance / scale**2)
        one = torch.ones(1, dtype=torch.float64)  # of the intercept
        self.variances = torch.cat([variances.clamp(min=0), one])
        self.basis = torch.block_diag(components, one)
        shares = counts.double() / self.num_rows
        self.curvatures = (shares * (1 - shares))[:, None]

    def fit(self, strength: float, start: Solution | None = None) -> Solution:
        """Fit with C = ``strength``, from another solution or from zero."""
        # Of two classes, scikit-learn penalises the difference of the weights, whose square is twice the sum of theirs.
        penalty = (2 if len(self.seen) == 2 else 1) / (strength * self.num_rows)
        penalties = torch.full_like(self.variances, penalty)
        penalties[-1] = 0  # the intercept's
        units = (self.curvatures * self.variances + penalties).rsqrt()

        def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            along = torch.from_numpy(parameters).view_as(units) * units
            loss, gradient = self.loss_and_gradient(along @ self.basis.T)
            loss += 0.5 * float((penalties * along**2).sum())
            return loss, ((gradient @ self.basis + penalties * along) * units).ravel().numpy()

        first = torch.zeros_like(units) if start is None else start.coefficients @ self.basis / units
        found = minimize(
            objective,
            first.ravel().numpy(),
            method="L-BFGS-B",
            jac=True,
            options={"maxiter": self.max_iter, "ftol": self.tolerance, "gtol": 0},
        )
        along = torch.from_numpy(found.x).view_as(units) * units
        return Solution(along @ self.basis.T, int(found.nit), bool(found.success))

    def loss_and_gradient(self, coefficients: Tensor) -> tuple[float, Tensor]:
        """Return the mean cross-entropy of the training rows and its gradient, float64, shape (K, D' + 1)."""
        weights, intercepts = coefficients[:, :-1].float(), coefficients[:, -1].float()
        loss, gradient = 0.0, torch.zeros_like(coefficients)
        for x, targets in zip(self.pieces, self.targets, strict=True):
            log_probabilities = torch.addmm(intercepts, x, weights.T).log_softmax(dim=1)
            loss -= float(log_probabilities.gather(1, targets).sum(dtype=torch.float64))
            residuals = log_probabilities.exp_()
            residuals.scatter_add_(1, targets, residuals.new_full((1, 1), -1).expand_as(targets))
            gradient[:, :-1] += residuals.T @ x
            gradient[:, -1] += residuals.sum(dim=0, dtype=torch.float64)
        return loss / self.num_rows, gradient / self.num_rows

    def predict(self, solution: Solution, nodes: Tensor) -> Tensor:
        """Return the likeliest class of each node, int64, shape (any,); the nodes must be sorted."""
        weights, intercepts = solution.coefficients[:, :-1].float(), solution.coefficients[:, -1].float()
        logits = (torch.addmm(intercepts, x, weights.T) for x in replace(self.rows, nodes=nodes))
        return self.seen[torch.cat([piece.argmax(dim=1) for piece in logits])]


def moments(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the rows, float64, shapes (D') and (D', D'), in one reading.

    The mean of the first piece is taken off all rows, since a square of float32 leaves nothing of a small variance
    beside a large mean.
    """
    shift = next(iter(rows)).mean(dim=0)
    width = len(shift)
    total, squares = torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64)
    for x in rows:
        x -= shift
        total += x.sum(dim=0, dtype=torch.float64)
        squares += x.T @ x
    mean = total / len(rows.nodes)
    return mean + shift, squares / len(rows.nodes) - mean.outer(mean)
