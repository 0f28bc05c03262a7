"""A graph of one's own: what files may hold, and what is said of those that hold something else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from src.data import GraphDataModule
from src.ops.propagation import normalised_adjacency
from src.ops.sparse import to_dense
from tests.conftest import Run

Make = Callable[..., GraphDataModule]
Write = Callable[[str, str], str]

NODES = """name,age,income,kind,part
ann,30,1.5,x,train
bob,40,2.5,y,validation
cid,50,0.5,,
dan,20,3.5,x,test
eve,25,4.5,y,train
"""
EDGES = """from,to,since
ann,bob,2001
bob,cid,2002
dan,ann,2003
"""
COLUMNS = {"id_column": "name", "classes": "kind", "split_column": "part"}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_file


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str, object], str]:
    def save_array(name: str, array: object) -> str:
        np.save(tmp_path / name, array) if name.endswith(".npy") else sp.save_npz(tmp_path / name, array)
        return str(tmp_path / name)

    return save_array


def test_tables_with_names_classes_and_a_split(make_datamodule: Make, write: Write) -> None:
    edges, nodes = write("edges.csv", EDGES), write("nodes.csv", NODES)
    datamodule = make_datamodule("custom", edges=edges, nodes=nodes, **COLUMNS, feature_scaling="none")
    datamodule.setup()
    expected = torch.tensor([[30, 1.5], [40, 2.5], [50, 0.5], [20, 3.5], [25, 4.5]])
    torch.testing.assert_close(to_dense(datamodule.graph.features), expected)
    adjacency = normalised_adjacency(torch.tensor([[0, 1, 3], [1, 2, 0]]), 5)
    torch.testing.assert_close(datamodule.graph.adjacency.to_dense(), adjacency.to_dense())
    assert datamodule.node_names is not None
    assert datamodule.node_names.tolist() == ["ann", "bob", "cid", "dan", "eve"]
    labels = datamodule.labels
    assert labels is not None
    assert labels.classes.tolist() == [0, 1, -1, 0, 1]
    assert [part.tolist() for part in (labels.train, labels.validation, labels.test)] == [[0, 4], [1], [3]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("edges.csv", "0,1\n1,2\n3,0\n"),
        ("edges.csv", "source,target\n0,1\n1,2\n3,0\n"),
        ("edges.csv", "# a comment\n0, 1, 0.5\n1, 2, 0.5\n3, 0, 0.5\n"),
        ("edges.tsv", "0\t1\n1\t2\n3\t0\n0\t3\n"),
        ("edges.txt", "0 1\n1 2\n3  0\n"),
    ],
)
def test_tables_of_numbered_edges(make_datamodule: Make, write: Write, name: str, text: str) -> None:
    nodes = write("nodes.csv", "a,b\n1,2\n3,4\n5,6\n7,8\n0,0\n")
    datamodule = make_datamodule("custom", edges=write(name, text), nodes=nodes)
    datamodule.setup()
    adjacency = normalised_adjacency(torch.tensor([[0, 1, 3], [1, 2, 0]]), 5)
    torch.testing.assert_close(datamodule.graph.adjacency.to_dense(), adjacency.to_dense())
    assert datamodule.labels is None
    assert datamodule.describe_split() is None
    assert datamodule.node_names is None


def test_nodes_that_only_the_edges_name(make_datamodule: Make, write: Write) -> None:
    datamodule = make_datamodule("custom", edges=write("edges.csv", "10,9\n9,100\n"), feature_scaling="row")
    datamodule.setup()
    torch.testing.assert_close(to_dense(datamodule.graph.features), torch.eye(3))
    assert datamodule.node_names is not None
    assert datamodule.node_names.tolist() == ["9", "10", "100"]  # as numbers, not as words
    adjacency = normalised_adjacency(torch.tensor([[1, 0], [0, 2]]), 3)
    torch.testing.assert_close(datamodule.graph.adjacency.to_dense(), adjacency.to_dense())


def test_a_table_of_nodes_without_features(make_datamodule: Make, write: Write) -> None:
    nodes = write("nodes.tsv", "name\tkind\n" + "".join(f"{name}\t{name}\n" for name in ("dan", "cid", "bob", "ann")))
    datamodule = make_datamodule(
        "custom",
        edges=write("edges.csv", EDGES),
        nodes=nodes,
        id_column="name",
        ignored_columns=["kind"],
        feature_scaling="none",
    )
    datamodule.setup()
    torch.testing.assert_close(to_dense(datamodule.graph.features), torch.eye(4))
    adjacency = normalised_adjacency(torch.tensor([[3, 2, 0], [2, 1, 3]]), 4)
    torch.testing.assert_close(datamodule.graph.adjacency.to_dense(), adjacency.to_dense())


@pytest.mark.parametrize("form", ["rows", "columns", "adjacency"])
def test_arrays_make_the_same_graph_as_the_published_files(make_datamodule: Make, save: Callable, form: str) -> None:
    published = make_datamodule("citeseer")
    assert isinstance(published, GraphDataModule)
    published.setup()
    graph, labels = published.graph, published.labels
    assert labels is not None
    edge_index, num_nodes = graph.adjacency.edge_index.numpy(), graph.num_nodes
    edges = {
        "rows": lambda: save("edges.npy", edge_index),
        "columns": lambda: save("edges.npy", edge_index.T),
        "adjacency": lambda: save(
            "edges.npz", sp.coo_matrix((np.ones(edge_index.shape[1]), tuple(edge_index)), (num_nodes, num_nodes))
        ),
    }[form]()
    features = save("features.npz", sp.csr_matrix(to_dense(graph.features).numpy()))
    classes = save("classes.npy", labels.classes.numpy() * 10 - 1)  # numbered otherwise, one class unknown
    datamodule = make_datamodule("custom", edges=edges, nodes=features, classes=classes)
    datamodule.setup()
    torch.testing.assert_close(to_dense(datamodule.graph.features), to_dense(graph.features))
    torch.testing.assert_close(datamodule.graph.adjacency.to_dense(), graph.adjacency.to_dense(), rtol=0, atol=0)
    assert datamodule.labels is not None
    assert torch.equal(datamodule.labels.classes, labels.classes - 1)
    assert sum(datamodule.labels.sizes) == int((labels.classes > 0).sum())


def test_names_of_the_nodes_that_the_largest_component_leaves(make_datamodule: Make, write: Write) -> None:
    edges, nodes = write("edges.csv", EDGES), write("nodes.csv", NODES)
    ignored = ["kind", "part"]
    datamodule = make_datamodule(
        "custom", edges=edges, nodes=nodes, id_column="name", ignored_columns=ignored, largest_component=True
    )
    datamodule.setup()
    assert datamodule.node_names is not None
    assert datamodule.node_names.tolist() == ["ann", "bob", "cid", "dan"]


@pytest.mark.parametrize(
    ("edges", "nodes", "settings", "message"),
    [
        (EDGES, NODES, {"id_column": "nane"}, r"a column of .*nodes.csv is 'nane'; it can be 'name', 'age'"),
        (EDGES, NODES, {"id_column": "name"}, r"holds words in 'kind', 'part'.*ignored_columns=\[kind,part\]"),
        (EDGES + "ann,zed,1\n", NODES, COLUMNS, r"nodes that are not there, 1 in all, such as 'zed'.*no such name"),
        ("0,1\n1,9\n", "a\n1\n2\n", {}, r"such as '9': .*nodes.csv has nodes 0..1; .*set dataset.id_column"),
        ("0,1\n1,\n", "a\n1\n2\n", {}, r"names one end only of 1 edges, the first number 2"),
        (EDGES, NODES.replace("eve", "ann"), COLUMNS, r"more than one node whose name is 'ann'"),
        (EDGES, NODES.replace("eve", ""), COLUMNS, r"has no name for 1 of its nodes"),
        (EDGES, NODES.replace("test", "tset"), COLUMNS, r"is 'tset'; it can be 'train', 'validation', 'test'"),
        (EDGES, NODES.replace("4.5", ""), COLUMNS, r"1 values that are NaN or infinite, the first at node 4, column 1"),
        (EDGES, NODES.replace("validation", ""), COLUMNS, r"no validation nodes"),
        (EDGES, NODES, {"split_column": "part"}, r"set dataset.classes too"),
    ],
)
def test_errors_name_the_file_and_the_way_out(
    make_datamodule: Make, write: Write, edges: str, nodes: str, settings: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_datamodule("custom", edges=write("edges.csv", edges), nodes=write("nodes.csv", nodes), **settings).setup()


def test_errors_of_arrays(make_datamodule: Make, save: Callable, tmp_path: Path) -> None:
    edges = save("edges.npy", np.array([[0, 1], [1, 2], [2, 0]]))
    features = save("features.npy", np.eye(3))
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}, None]), allow_pickle=True)
    pickled = tmp_path / "pickled.npz"
    pickled.write_bytes(pickle.dumps([1]))
    for changes, message in (
        ({"edges": None}, "dataset=custom needs dataset.edges=<file>"),
        ({"edges": save("real.npy", np.eye(2))}, r"real.npy is of shape \(2, 2\) and float64; edges are integers"),
        ({"edges": save("wide.npz", sp.coo_matrix(np.eye(3)[:2]))}, "as many rows as columns"),
        ({"nodes": save("cube.npy", np.zeros((3, 1, 1)))}, r"cube.npy is of shape \(3, 1, 1\)"),
        ({"nodes": str(objects)}, "objects.npy can't be read: .*allow_pickle=False"),
        ({"nodes": str(pickled)}, "pickled.npz can't be read"),
        ({"nodes": features, "id_column": "name"}, "is no table with columns name"),
        ({"nodes": features, "classes": save("two.npy", np.array([0, 1]))}, "has 2 classes, and there are 3 nodes"),
        ({"nodes": features, "classes": save("one.npy", np.eye(3))}, r"classes are integers of shape \(N,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            make_datamodule("custom", **({"edges": edges} | changes)).setup()
    with pytest.raises(FileNotFoundError, match=f"there is no file {tmp_path}/none.csv"):
        make_datamodule("custom", edges=str(tmp_path / "none.csv")).setup()
    (tmp_path / "nodes.xlsx").touch()
    with pytest.raises(ValueError, match=r"the ending of .*nodes.xlsx is '.xlsx'; it can be '.csv'"):
        make_datamodule("custom", edges=edges, nodes=str(tmp_path / "nodes.xlsx")).setup()


@pytest.mark.command
def test_a_graph_without_classes_from_the_command_line(run: Run, write: Write, tmp_path: Path) -> None:
    edges, nodes = write("edges.csv", EDGES), write("nodes.csv", NODES)
    settings = [
        "dataset=custom",
        f"dataset.edges={edges}",
        f"dataset.nodes={nodes}",
        "dataset.id_column=name",
        "dataset.ignored_columns=[kind,part]",
        "trainer.max_steps=5",
    ]
    outcome = run(*settings)
    assert outcome.returncode == 0, outcome.stderr
    assert "no classes are known, so that nothing is probed" in outcome.stdout
    assert "in the end; 0.693 is chance" in outcome.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["test_accuracy"] is result["probe"] is result["references"] is result["split"] is None
    assert (tmp_path / "run" / "nodes.txt").read_text().split() == ["ann", "bob", "cid", "dan", "eve"]
    assert np.load(tmp_path / "run" / "embeddings.npy").shape == (5, 512)

    sweep = run("-m", *settings, "seed=0,1", "model.hidden_dim=4,8")
    assert sweep.returncode == 0, sweep.stderr
    assert "nan" not in sweep.stdout.lower()
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert [row["val_accuracy"] for row in rows] == [None, None]
    assert all(0 < row["loss"][0] < 2 for row in rows)

    page = run(f"outputs_dir={tmp_path}", f"file={tmp_path}/report.html", module="src.report")
    assert page.returncode == 0, page.stderr
    assert "unknown" not in page.stderr
