"""A picture of embeddings in the plane."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits


def project(embeddings: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Place a random sample of nodes in the plane: 50 principal components, then t-SNE, van der Maaten & Hinton (2008).

    Args:
        embeddings: float32, shape (N, D').
        num_nodes: Size n of the sample, the same nodes each time; N if that is less.

    Returns:
        The nodes, int64, sorted, shape (n,), and their places, float32, shape (n, 2).

    Raises:
        ValueError: If the embeddings of these nodes are not finite, or all the same, or have fewer than 2 dimensions.
    """
    nodes = np.sort(np.random.default_rng(0).permutation(len(embeddings))[:num_nodes])
    sample = np.asarray(embeddings[nodes], dtype=np.float32)
    if sample.ndim != 2 or min(sample.shape) < 2 or not np.isfinite(sample).all() or not np.ptp(sample, axis=0).any():
        raise ValueError(
            f"embeddings of shape {embeddings.shape} can't be drawn: they must be finite, differ between nodes, and "
            "have 2 dimensions or more"
        )
    components = PCA(min(50, *sample.shape), random_state=0).fit_transform(sample)
    perplexity = min(30, (len(nodes) - 1) / 3)
    # One thread: two wait for each other, and take eight times as long on 400 nodes where the cores are busy.
    with threadpool_limits(1):
        return nodes, TSNE(perplexity=perplexity, max_iter=500, random_state=0).fit_transform(components)


def draw(places: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
    """Draw places, shape (n, 2), coloured by class, shape (n,), where it is known.

    Returns:
        The image, uint8, shape (height, width, 3).
    """
    figure = Figure(figsize=(6, 6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = np.zeros(len(places)) if classes is None else classes
    axes.scatter(
        places[:, 0], places[:, 1], c=colours, cmap="tab10" if colours.max() < 10 else "tab20", s=6, linewidths=0
    )
    by_class = "" if classes is None else ", coloured by class"
    axes.set(xticks=[], yticks=[], aspect="equal", title=f"t-SNE of {len(places):,} nodes{by_class}")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]
