"""OGB's datasets: tiny graphs in its formats, read in pieces, and downloaded from a real server."""

from __future__ import annotations

import builtins
import gzip
import http.server
import json
import logging
import os
import pickle
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ogb.io.read_graph_raw import read_binary_graph_raw, read_csv_graph_raw

from src.data import OGBDataModule, ogb_format
from src.data.download import CHUNK_BYTES, download
from src.data.npz import npz_pieces
from src.data.ogb import official_accuracy
from src.data.ogb_format import read_split
from src.ops.propagation import normalised_adjacency
from tests.conftest import Run, dataset_config

EDGES = np.array([[0, 1, 2, 3, 4, 5, 5, 2], [1, 2, 3, 4, 5, 3, 5, 1]])  # with a loop, and an edge in both directions
FEATURES = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float16)  # exact in either width
CLASSES = np.array([0, 1, -1, 2, 1, -1, 0])
SPLIT = {"train": np.array([0, 3, 1]), "valid": np.array([4]), "test": np.array([6])}
COUNTS = {"nodes": 7, "edges": 8, "features": 3, "classes": 3}
UNREACHABLE = "http://127.0.0.1:9/graph.zip"  # the discard port: refused at once
LABELS = np.where(CLASSES < 0, np.nan, CLASSES)[:, None]

Make = Callable[..., OGBDataModule]


def write_csv(raw: Path) -> None:
    tables = {
        "edge": EDGES.T,
        "node-feat": FEATURES.astype(float),
        "node-label": LABELS,
        "num-node-list": [7],
        "num-edge-list": [8],
    }
    for name, table in tables.items():
        pd.DataFrame(table).to_csv(raw / f"{name}.csv.gz", header=False, index=False)


def write_npz(raw: Path, save: Callable[..., None] = np.savez, dtype: str = "float32") -> None:
    years = np.full((7, 1), 2020)
    sizes = {"num_nodes_list": np.array([7]), "num_edges_list": np.array([8])}
    save(raw / "data.npz", edge_index=EDGES, node_feat=FEATURES.astype(dtype), node_year=years, **sizes)
    save(raw / "node-label.npz", node_label=LABELS.astype(np.float32))


def write_split_csv(folder: Path) -> None:
    for part, nodes in SPLIT.items():
        pd.DataFrame(nodes).to_csv(folder / f"{part}.csv.gz", header=False, index=False)


def write_split_dict(folder: Path, content: object = SPLIT, **options: Any) -> None:
    torch.save(content, folder / "split_dict.pt", **options)


def write_dataset(folder: Path, raw: Callable[[Path], None] = write_csv, split: Any = write_split_csv) -> Path:
    """Write a dataset as OGB lays it out; all three split by time, but for ogbn-products."""
    for name in ("raw", "split/time", "mapping"):
        (folder / name).mkdir(parents=True)
    raw(folder / "raw")
    split(folder / "split" / "time")
    (folder / "RELEASE_v1.txt").touch()
    return folder


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Build a dataset with the counts of the tiny graph, and pieces of a few edges or rows."""
    monkeypatch.delenv("GGD_DATA_MIRROR", raising=False)
    monkeypatch.setattr(ogb_format, "PIECE_BYTES", 36)

    def build(name: str = "ogbn-arxiv", url: str = UNREACHABLE, **changes: Any) -> OGBDataModule:
        config = (
            dataset_config(name.lower()) | {"data_dir": str(tmp_path / "data"), "counts": COUNTS, "seed": 0} | changes
        )
        del config["_target_"]
        datamodule = OGBDataModule(**config)
        datamodule.files.published["url"] = url
        return datamodule

    return build


def check_source(datamodule: OGBDataModule) -> None:
    """Compare what is read, twice, with what was written."""
    source = datamodule.source()
    assert (source.num_nodes, source.num_edges, source.num_features) == (7, 8, 3)
    for _ in range(2):
        edges, features = list(source.edges()), list(source.features())
        assert min(len(edges), len(features)) > 1
        np.testing.assert_array_equal(np.concatenate(edges, axis=1), EDGES)
        np.testing.assert_allclose(np.concatenate(features), FEATURES, rtol=1e-6)  # decimal digits of the .csv
    np.testing.assert_array_equal(source.classes, CLASSES)
    assert source.classes.dtype == np.int16
    assert {part: nodes.tolist() for part, nodes in source.split.items()} == {
        "train": [0, 1, 3],
        "validation": [4],
        "test": [6],
    }


def split_dict(**options: Any) -> Callable[[Path], None]:
    return lambda folder: write_split_dict(folder, **options)


@pytest.mark.parametrize(
    "split",
    [
        write_split_csv,
        split_dict(),
        split_dict(pickle_protocol=4),
        split_dict(pickle_protocol=4, _use_new_zipfile_serialization=False),
        split_dict(_use_new_zipfile_serialization=False),
    ],
    ids=["csv", "protocol 2", "protocol 4", "protocol 4 before 1.6", "protocol 2 before 1.6"],
)
def test_csv_files_with_every_kind_of_split(make: Make, tmp_path: Path, split: Callable[[Path], None]) -> None:
    folder = write_dataset(tmp_path / "data" / "ogbn_arxiv", split=split)
    check_source(make(download=False))
    published = read_csv_graph_raw(str(folder / "raw"))[0]
    np.testing.assert_array_equal(published["edge_index"], EDGES)  # what was written is OGB's format
    np.testing.assert_allclose(published["node_feat"], FEATURES, rtol=1e-6)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_npz_files_stored_and_compressed(make: Make, tmp_path: Path, save: Callable[..., None], dtype: str) -> None:
    folder = write_dataset(tmp_path / "data" / "ogbn_papers100M", lambda raw: write_npz(raw, save, dtype))
    check_source(make("ogbn-papers100M", download=False))
    published = read_binary_graph_raw(str(folder / "raw"))[0]
    np.testing.assert_array_equal(published["edge_index"], EDGES)
    assert published["node_feat"].dtype == dtype


def test_found_in_the_mirror_which_stays_as_it_is(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_dataset(tmp_path / "mirror" / "ogbn_arxiv")
    before = sorted(folder.rglob("*"))
    datamodule = make()
    assert datamodule.files.mirror is None
    monkeypatch.setenv("GGD_DATA_MIRROR", str(tmp_path / "mirror"))
    datamodule = make()
    datamodule.check_resources()
    check_source(datamodule)
    assert sorted(folder.rglob("*")) == before
    assert not (tmp_path / "data").exists()


def test_another_version_is_named(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (write_dataset(tmp_path / "data" / "ogbn_arxiv") / "RELEASE_v1.txt").unlink()
    make().source()
    assert "has no RELEASE_v1.txt" in caplog.text


def test_counts_that_differ_from_the_published_ones(make: Make, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "ogbn_arxiv")
    with pytest.raises(ValueError, match="it has 8 edges instead of 9, 3 classes instead of 40"):
        make(counts=COUNTS | {"edges": 9, "classes": 40}).source()


def test_a_name_that_ogb_has_not(make: Make) -> None:
    with pytest.raises(ValueError, match=r"dataset\.name is 'ogbn-mag'; it can be 'ogbn-arxiv'"):
        OGBDataModule(**dataset_config("ogbn-arxiv") | {"name": "ogbn-mag"})


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (Evil(), r"holds posix\.mkdir"),
        ({part: torch.tensor(nodes) for part, nodes in SPLIT.items()}, "holds torch"),
        ({"train": np.arange(3)}, "has no arrays of nodes named train, valid, test"),
        ({part: nodes.astype(object) for part, nodes in SPLIT.items()}, "has no arrays of nodes"),
        ([1, 2], "has no arrays of nodes"),
    ],
)
def test_nothing_but_arrays_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, content: object, fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_split_dict(tmp_path, content, pickle_protocol=protocol)
    with pytest.raises(ValueError, match=rf"split_dict\.pt can't be read: it {fault}"):
        read_split(tmp_path)
    assert os.listdir(tmp_path) == ["split_dict.pt"]


def test_a_pickle_alone_is_not_run_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "split_dict.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"it holds posix\.mkdir"):
        read_split(tmp_path)
    assert os.listdir(tmp_path) == ["split_dict.pt"]


def test_damaged_files_are_named(make: Make, tmp_path: Path) -> None:
    raw = write_dataset(tmp_path / "data" / "ogbn_arxiv") / "raw"
    content = (raw / "node-label.csv.gz").read_bytes()
    for damaged in (content[:-9], b"<html>", gzip.compress(b"no,number\n")):
        (raw / "node-label.csv.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"node-label\.csv\.gz can't be read"):
            make().source()
    raw = write_dataset(tmp_path / "data" / "ogbn_papers100M", write_npz) / "raw"
    content = (raw / "data.npz").read_bytes()
    (raw / "data.npz").write_bytes(content.replace(FEATURES.astype(np.float32).tobytes(), bytes(FEATURES.size * 4)))
    with pytest.raises(ValueError, match=r"data\.npz can't be read: Bad CRC-32"):
        list(make("ogbn-papers100M").source().features())
    np.savez(raw / "data.npz", node_feat=FEATURES)
    with pytest.raises(ValueError, match=r"data\.npz can't be read: it holds no array edge_index, but node_feat\.npy"):
        make("ogbn-papers100M").source()


def test_arrays_that_can_not_be_read_in_pieces(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", order=np.asfortranarray(FEATURES), objects=np.array([None]))
    for name, fault in (("order", "in Fortran order"), ("objects", "of object")):
        with pytest.raises(ValueError, match=fault):
            list(npz_pieces(tmp_path / "a.npz", name, 0, 100))


class Server(http.server.ThreadingHTTPServer):
    """Serves one file."""

    content = b""
    breaks_at: tuple[int, ...] = ()  # where the first answers break off
    takes_ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/graph.zip"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.server.asked.append("HEAD")
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(f"GET {wanted}")
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.takes_ranges else 0
        rest = self.server.content[first:]
        self.send_response(416 if first and not rest else 206 if first else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        breaks = len([asked for asked in self.server.asked if asked != "HEAD"]) - 1
        last = self.server.breaks_at[breaks] if breaks < len(self.server.breaks_at) else len(self.server.content)
        self.wfile.write(self.server.content[first:last])
        self.close_connection = True

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A web server on this machine that serves the archive of a tiny ogbn-arxiv."""
    folder = write_dataset(tmp_path / "packed" / "arxiv")
    (folder / "mapping" / "random.bin").write_bytes(np.random.default_rng(0).bytes(3 * CHUNK_BYTES))
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "packed", "arxiv")
    with Server() as server:
        server.content = (tmp_path / "packed.zip").read_bytes()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


KEPT = {"ogbn_arxiv", ".ogbn_arxiv.lock"}


def test_downloaded_once_and_never_asked(
    make: Make, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with open(os.devnull) as closed:
        monkeypatch.setattr(sys, "stdin", closed)  # a question would end in EOFError
        datamodule = make(url=server.url)
        datamodule.check_resources()
        assert server.asked == ["HEAD"]
        first = caplog.messages[0]
        assert f"{len(server.content) / 1e9:.3g} GB to download" in first
        assert "GB are free in" in first
        check_source(datamodule)
    assert server.asked == ["HEAD", "GET None"]
    assert "8 edges in the files of" in caplog.text
    check_source(make(url=server.url))
    assert len(server.asked) == 2
    assert names(tmp_path / "data") == KEPT
    assert (tmp_path / "data" / "ogbn_arxiv" / "mapping").is_dir()


def test_a_broken_download_goes_on_where_it_stopped(make: Make, server: Server, tmp_path: Path) -> None:
    server.breaks_at = (CHUNK_BYTES, 2 * CHUNK_BYTES)
    check_source(make(url=server.url))
    assert server.asked == ["HEAD", "GET None", f"GET bytes={CHUNK_BYTES}-", f"GET bytes={2 * CHUNK_BYTES}-"]
    assert names(tmp_path / "data") == KEPT


def test_the_next_run_goes_on_where_one_was_interrupted(make: Make, server: Server, tmp_path: Path) -> None:
    server.breaks_at = (CHUNK_BYTES, CHUNK_BYTES)
    with pytest.raises(FileNotFoundError, match="0 bytes read"):
        make(url=server.url).source()
    assert (tmp_path / "data" / "arxiv.zip.partial").read_bytes() == server.content[:CHUNK_BYTES]
    assert make(url=server.url).files.remaining_bytes == len(server.content) - CHUNK_BYTES
    check_source(make(url=server.url))
    assert server.asked[-1] == f"GET bytes={CHUNK_BYTES}-"
    assert names(tmp_path / "data") == KEPT


def test_a_whole_download_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(server.content)
    download(server.url, tmp_path / "whole", len(server.content))
    assert server.asked == [f"GET bytes={len(server.content)}-"]
    assert (tmp_path / "whole").read_bytes() == server.content


def test_a_server_that_takes_no_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.takes_ranges = False
    (tmp_path / "part").write_bytes(server.content[:1000])
    download(server.url, tmp_path / "part", len(server.content))
    assert (tmp_path / "part").read_bytes() == server.content


def test_two_at_once_download_once(make: Make, server: Server, tmp_path: Path) -> None:
    threads = [threading.Thread(target=make(url=server.url).source) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert server.asked.count("GET None") == len(server.asked) - server.asked.count("HEAD") == 1
    assert names(tmp_path / "data") == KEPT


def test_what_is_no_archive_is_not_kept(make: Make, server: Server, tmp_path: Path) -> None:
    packed, server.content = server.content, b"<html>please log in</html>"
    with pytest.raises(FileNotFoundError, match=r"arxiv\.zip\.partial \(26 bytes, beginning b'<html>please log'"):
        make(url=server.url).source()
    server.content = packed.replace(b"RELEASE_v1", b"REL_ASE_v1")  # names in the archive that contradict each other
    server.content = server.content.replace(b"REL_ASE_v1", b"RELEASE_v1", 1)
    with pytest.raises(FileNotFoundError, match="differ"):
        make(url=server.url).source()
    assert names(tmp_path / "data") == {".ogbn_arxiv.lock"}
    server.content = packed
    check_source(make(url=server.url))


def test_an_archive_of_something_else(make: Make, server: Server, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "packed" / "arxiv" / "raw")
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "packed", "arxiv")
    server.content = (tmp_path / "packed.zip").read_bytes()
    with pytest.raises(FileNotFoundError, match=r"it lacks raw/edge\.csv\.gz, .* in arxiv/"):
        make(url=server.url).source()
    assert names(tmp_path / "data") == {".ogbn_arxiv.lock"}


def test_an_archive_of_the_user_is_unpacked_and_kept(make: Make, server: Server, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "arxiv.zip").write_bytes(server.content)
    datamodule = make(download=False)
    datamodule.check_resources()
    check_source(datamodule)
    assert names(tmp_path / "data") == KEPT | {"arxiv.zip"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "arxiv.zip").write_bytes(b"mine")
    with pytest.raises(FileNotFoundError, match=r"arxiv\.zip \(4 bytes, beginning b'mine'\): File is not a zip file"):
        make(url=server.url, data_dir=str(tmp_path / "other")).source()
    assert (tmp_path / "other" / "arxiv.zip").read_bytes() == b"mine"
    assert server.asked == []


def test_offline_and_forbidden_downloads_name_files_url_and_folder(make: Make, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "ogbn_arxiv"
    with pytest.raises(FileNotFoundError, match=r"dataset\.download=false") as forbidden:
        make(url=server.url, download=False).check_resources()
    assert server.asked == []
    datamodule = make()
    datamodule.check_resources()  # with the size that is known
    with pytest.raises(FileNotFoundError, match="Connection refused") as offline:
        datamodule.source()
    for error, url in ((forbidden, server.url), (offline, UNREACHABLE)):
        for part in ("raw/edge.csv.gz", "split/time/valid.csv.gz", url, str(folder), "GGD_DATA_MIRROR"):
            assert part in str(error.value)


def test_a_folder_of_the_user_that_is_not_whole_is_left_alone(make: Make, server: Server, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "data" / "ogbn_arxiv")
    (folder / "raw" / "edge.csv.gz").unlink()
    before = sorted(folder.rglob("*"))
    for call in (make(url=server.url).check_resources, make(url=server.url).source):
        with pytest.raises(
            FileNotFoundError, match=r"ogbn_arxiv is there, but not whole[^$]*lacks raw/edge\.csv\.gz\."
        ):
            call()
    assert sorted(folder.rglob("*")) == before
    assert server.asked == []


def test_too_little_disk_or_memory_is_refused_before_the_download(make: Make, server: Server, tmp_path: Path) -> None:
    huge = {"nodes": 10**12, "edges": 10**13, "features": 128, "classes": 3}  # 5 * 10^14 bytes of features
    with pytest.raises(OSError, match=r"needs [\d.,e+]+ GB of disk, and [\d.,e+]+ GB are free") as disk:
        make("ogbn-papers100M", server.url, counts=huge).check_resources()
    for step in ("data_dir", "dataset.feature_dtype=float16", "dataset=synthetic/papers100m dataset.scale=0.01"):
        assert step in str(disk.value)
    with pytest.raises(
        OSError, match=r"takes about 1e\+06 GB of memory, and [\d.,]+ GB are free: lower dataset.memory"
    ):
        make(url=server.url, memory_mb=10**9).check_resources()
    assert "GET None" not in server.asked
    assert not (tmp_path / "data").exists()


def test_an_archive_too_large_to_unpack_is_refused(make: Make, server: Server, tmp_path: Path) -> None:
    """Only the directory at the end of the archive is read for its size, here one of 10^15 bytes."""
    info = zipfile.ZipInfo("arxiv/raw/edge.csv.gz")
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "arxiv.zip", "w") as archive:
        archive.writestr(info, b"")
        info.file_size = 10**15
    with pytest.raises(OSError, match=r"needs 1e\+06 GB of disk"):
        make(url=server.url).source()
    assert names(tmp_path / "data") == {"arxiv.zip", ".ogbn_arxiv.lock"}


def test_the_package_ogb_is_imported_silently(
    make: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] in ("ogb", "outdated")]:
        monkeypatch.delitem(sys.modules, module)
    before = torch.load, builtins.input, set(threading.enumerate())
    assert make().files.published["split"] == "time"
    assert official_accuracy("ogbn-arxiv", np.array([1, 2, 3, 3]), np.array([1, 2, 3, 0])) == 0.75
    assert "ogb" in sys.modules
    assert "outdated" not in sys.modules  # which would look for newer versions on the network
    assert (torch.load, builtins.input, set(threading.enumerate())) == before
    assert capfd.readouterr() == ("", "")


def test_official_accuracy_of_tensors() -> None:
    predicted, true = torch.randint(3, (100,)), torch.randint(3, (100,))
    expected = (predicted == true).double().mean().item()
    assert official_accuracy("ogbn-papers100M", predicted, true) == pytest.approx(expected)


def test_setup_makes_the_symmetric_graph_once(make: Make, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "ogbn_arxiv")
    first, again = make(), make()
    first.setup()
    shutil.rmtree(tmp_path / "data" / "ogbn_arxiv")  # what is prepared needs no files any more
    again.setup()
    for datamodule in (first, again):
        expected = normalised_adjacency(torch.from_numpy(EDGES), 7)
        torch.testing.assert_close(datamodule.graph.adjacency.csr.to_dense(), expected.csr.to_dense())
        assert datamodule.labels.classes.tolist() == CLASSES.tolist()
        assert datamodule.describe_split()["sizes"] == [3, 1, 1]
        assert datamodule.labels.score(np.array([2, 1]), np.array([2, 0])) == 0.5


@pytest.mark.command
def test_the_command_on_files_of_ogb(run: Run, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "ogbn_arxiv")
    counts = [f"dataset.counts.{key}={count}" for key, count in COUNTS.items()]
    outcome = run(
        "dataset=ogbn-arxiv", *counts, "model.hidden_dim=4", "trainer.max_steps=2", f"data_dir={tmp_path}/data"
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "8 edges in the files of" in outcome.stdout
    assert json.loads((tmp_path / "run" / "result.json").read_text())["split"]["sizes"] == [3, 1, 1]
