"""Pictures of embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from src.evaluation.projection import draw, project


def test_the_projection_keeps_two_clusters_apart() -> None:
    classes = np.repeat([0, 1], 60)
    embeddings = (np.random.default_rng(0).normal(size=(120, 8)) + 20 * classes[:, None]).astype(np.float32)
    nodes, places = project(embeddings, 80)
    assert nodes.shape == np.unique(nodes).shape == (80,)
    assert places.shape == (80, 2)
    first, second = places[classes[nodes] == 0], places[classes[nodes] == 1]
    spread = max(np.linalg.norm(part - part.mean(axis=0), axis=1).max() for part in (first, second))
    assert np.linalg.norm(first.mean(axis=0) - second.mean(axis=0)) > spread
    image = draw(places, classes[nodes])
    assert image.dtype == np.uint8
    assert image.ndim == image.shape[2] == 3


@pytest.mark.parametrize("embeddings", [np.ones((9, 4)), np.full((9, 4), np.nan), np.arange(9.0)[:, None], np.ones(9)])
def test_embeddings_that_cannot_be_drawn_are_refused(embeddings: np.ndarray) -> None:
    with pytest.raises(ValueError, match="can't be drawn"):
        project(embeddings, 9)
