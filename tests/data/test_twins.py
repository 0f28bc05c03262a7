"""The twins have the counts, degrees, homophily and features that their settings name, and are the same each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import yaml
from scipy.stats import binomtest, chisquare

from src.command import PROJECT_ROOT
from src.data import twins
from src.data.store import Source, Store, build_store, open_store
from src.data.twins import Ranks, twin_source

SETTINGS = {
    "num_nodes": 20_010,
    "num_edges": 150_000,
    "num_features": 16,
    "num_classes": 20,
    "homophily": 0.6,
    "degree_exponent": 2.6,
    "signal": 2.0,
    "split_sizes": {"train": 9000, "validation": 3000, "test": 6000},
    "scale": 1.0,
    "graph_seed": 0,
}
PUBLISHED = {  # nodes, edges, features, classes; Hu et al., "Open Graph Benchmark", NeurIPS 2020, Table 2
    "arxiv": (169_343, 1_157_799, 128, 40),
    "products": (2_449_029, 61_859_140, 100, 47),
    "papers100m": (111_059_956, 1_615_685_872, 128, 172),
}


def make(**changes: Any) -> Source:
    return twin_source(**(SETTINGS | changes))


def drawn_edges(source: Source) -> np.ndarray:
    return np.concatenate(list(source.edges()), axis=1)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("twins") / "twin"
    build_store(make(), folder, "float32", {}, memory_mb=100)
    return open_store(folder)


def settings_of(name: str, **changes: Any) -> dict[str, Any]:
    config = yaml.safe_load((PROJECT_ROOT / "conf" / "dataset" / "synthetic" / f"{name}.yaml").read_text())
    return {key: config[key] for key in SETTINGS} | changes


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_twins_have_published_counts(name: str) -> None:
    found = settings_of(name)
    assert tuple(found[f"num_{what}"] for what in ("nodes", "edges", "features", "classes")) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "scale"), [("arxiv", 0.2), ("products", 0.005), ("papers100m", 0.0002)])
def test_a_scaled_twin_has_so_many_edges_nodes_and_labels(tmp_path: Path, name: str, scale: float) -> None:
    settings = settings_of(name, scale=scale)
    source = twin_source(**settings)
    build_store(source, tmp_path / name, "float16", {}, memory_mb=100)
    found = open_store(tmp_path / name)
    num_nodes = len(found.row_starts) - 1
    assert num_nodes == round(scale * PUBLISHED[name][0])
    edges = (len(found.columns) - num_nodes) // 2
    assert edges == pytest.approx(scale * PUBLISHED[name][1], rel=0.01)
    assert found.features.shape == (num_nodes, PUBLISHED[name][2])
    for part, size in settings["split_sizes"].items():
        assert len(getattr(found, part)) == int(scale * size)
    labelled = np.concatenate([found.train, found.validation, found.test])
    assert (found.classes[labelled] >= 0).all()
    assert (found.classes >= 0).sum() == len(labelled)
    sizes = np.bincount(found.classes[found.train], minlength=PUBLISHED[name][3])
    assert sizes.min() > 0
    assert sizes.max() <= sizes.min() + 1


@pytest.mark.parametrize("homophily", [0.0, 0.3, 1.0])
def test_homophily_is_the_share_of_edges_within_a_class(homophily: float) -> None:
    source = make(homophily=homophily, split_sizes={"train": 20_010, "validation": 0, "test": 0})
    edges = drawn_edges(source)
    same = int((source.classes[edges[0]] == source.classes[edges[1]]).sum())
    assert binomtest(same, edges.shape[1], homophily).pvalue > 1e-4  # exact for 0 and 1


@pytest.mark.parametrize("exponent", [2.3, 3.0])
def test_degrees_follow_the_power_law(tmp_path: Path, exponent: float) -> None:
    build_store(make(degree_exponent=exponent), tmp_path / "twin", "float32", {}, memory_mb=100)
    degrees = np.diff(open_store(tmp_path / "twin").row_starts) - 1
    some, few = ((degrees >= bound).sum() for bound in (20, 80))
    # P(degree >= d) falls as d^-(exponent - 1). Edges of hubs merge, which adds 0.13 or so, and the standard error of
    # 170 nodes and more is 0.06.
    assert 1 + np.log(some / few) / np.log(4) == pytest.approx(exponent, abs=0.13 + 2 * 0.06)


def test_hubs_and_classes_are_anywhere_among_the_node_numbers(opened: Store) -> None:
    hubs = np.argsort(np.diff(opened.row_starts))[-200:]
    # More even than chance, as the bijection is
    assert chisquare(np.histogram(hubs, bins=10, range=(0, 20_010))[0]).pvalue > 1e-3
    classes = opened.classes[:1000]
    assert chisquare(np.bincount(classes[classes >= 0], minlength=20)).pvalue > 1e-3


def test_the_training_nodes_are_not_the_hubs(opened: Store) -> None:
    degrees = np.diff(opened.row_starts) - 1
    train, others = degrees[opened.train], np.delete(degrees, opened.train)
    error = np.hypot(train.std() / np.sqrt(len(train)), others.std() / np.sqrt(len(others)))
    assert abs(train.mean() - others.mean()) < 4 * error


def test_smoothing_helps_where_raw_features_say_little(opened: Store) -> None:
    """Each test node goes to the class whose training nodes have the nearest mean."""
    adjacency = sp.csr_matrix((opened.values, opened.columns, opened.row_starts))

    def accuracy(x: np.ndarray) -> float:
        means = np.stack([x[opened.train][opened.classes[opened.train] == label].mean(axis=0) for label in range(20)])
        distances = ((x[opened.test, None] - means) ** 2).sum(axis=2)
        return (distances.argmin(axis=1) == opened.classes[opened.test]).mean()

    raw = np.asarray(opened.features)
    assert 2 / 20 < accuracy(raw) < 0.6
    assert accuracy(adjacency @ raw) > accuracy(raw) + 0.2


def test_features_have_variance_one_about_means_of_the_length_of_the_signal(opened: Store) -> None:
    by_class = [np.asarray(opened.features)[opened.classes == label] for label in range(20)]
    assert np.mean([x.var(axis=0) for x in by_class]) == pytest.approx(1, abs=0.02)  # 4 standard errors of 288,000
    lengths = [np.linalg.norm(x.mean(axis=0)) for x in by_class]
    assert np.mean(lengths) == pytest.approx(2.0, abs=0.35)  # 4 standard errors of 20 lengths in 16 dimensions


def test_it_is_the_same_each_time_and_another_for_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "PIECE_EDGES", 2**15)
    monkeypatch.setattr(twins, "PIECE_NUMBERS", 2**15)
    source, again, other = make(), make(), make(graph_seed=1)
    assert len(list(source.edges())) > 3
    assert len({piece.tobytes() for piece in source.edges()}) == len(list(source.edges()))  # no piece twice
    assert len({piece.tobytes() for piece in source.features()}) == len(list(source.features()))
    for what in ("edges", "features"):
        first = [piece.tobytes() for piece in getattr(source, what)()]
        assert first == [piece.tobytes() for piece in getattr(source, what)()]
        assert first == [piece.tobytes() for piece in getattr(again, what)()]
        assert first != [piece.tobytes() for piece in getattr(other, what)()]


@pytest.mark.parametrize(("num_nodes", "num_classes"), [(7, 2), (40, 20), (1001, 10), (997, 3)])
def test_the_orders_of_nodes_are_bijections(num_nodes: int, num_classes: int) -> None:
    ranks = Ranks(num_nodes, num_classes, 2.5)
    order = ranks.spread(np.arange(num_nodes))
    assert np.array_equal(np.sort(order), np.arange(num_nodes))
    assert np.array_equal(ranks.classes(order), np.arange(num_nodes) % num_classes)
    classes = np.random.default_rng(0).integers(num_classes, size=5000)
    nodes = ranks.draw(classes, np.random.default_rng(1))
    assert np.array_equal(ranks.classes(nodes), classes)
    assert nodes.min() >= 0
    assert nodes.max() < num_nodes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": 1}, "dataset.num_classes is 1; it must be at least 2"),
        ({"homophily": 1.5}, "dataset.homophily is 1.5; it must be in"),
        ({"degree_exponent": 2.0}, "dataset.degree_exponent is 2.0; it must be above 2"),
        ({"scale": 0.0}, "dataset.scale is 0.0; it must be above 0, and at most 1"),
        ({"scale": 1.5}, "dataset.scale is 1.5; it must be above 0, and at most 1"),
        ({"scale": 0.001}, "times dataset.scale is 20; it must be at least twice the 20 classes"),
        ({"num_nodes": 10_000}, r"is 10,000; .* as many as the split has \(18,000\)"),
        ({"num_edges": 10**9}, "dataset.num_edges times dataset.scale is 1,000,000,000; 20,010 nodes with"),
    ],
)
def test_settings_out_of_range(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)
