"""Raw files: where they are looked for, and what happens to damaged and missing ones. Served by a real server."""

from __future__ import annotations

import functools
import hashlib
import http.server
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from src.data.raw import EMBEDDED, RawFiles

GOOD = b"the raw file, as published"
SHA256 = {"part.x": hashlib.sha256(GOOD).hexdigest()}
UNREACHABLE = "http://127.0.0.1:9"  # the discard port: refused at once


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A web server on this machine that serves the good file."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "part.x").write_bytes(GOOD)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def files(tmp_path: Path, url: str = UNREACHABLE, mirror: Path | None = None, download: bool = True) -> RawFiles:
    return RawFiles("Some", SHA256, url, tmp_path / "data", mirror, download)


def put(root: Path, content: bytes) -> Path:
    path = root / "Some" / "raw" / "part.x"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def collect(raw: RawFiles) -> bytes:
    with raw.collected() as root:
        return (root / "Some" / "raw" / "part.x").read_bytes()


def test_found_in_the_data_folder_without_a_network(tmp_path: Path) -> None:
    put(tmp_path / "data", GOOD)
    assert collect(files(tmp_path)) == GOOD


def test_found_in_the_mirror_which_stays_as_it_is(tmp_path: Path) -> None:
    kept = put(tmp_path / "mirror", GOOD)
    assert collect(files(tmp_path, mirror=tmp_path / "mirror")) == GOOD
    assert list((tmp_path / "mirror").rglob("*.*")) == [kept]
    assert not (tmp_path / "data").exists()


def test_downloaded_and_kept(tmp_path: Path, server: str) -> None:
    assert collect(files(tmp_path, server)) == GOOD
    assert collect(files(tmp_path)) == GOOD  # no server needed the second time


@pytest.mark.parametrize("content", [GOOD[:10], b"", b"<html>504 Gateway Time-out</html>"])
def test_a_damaged_file_is_named_set_aside_and_fetched_again(
    tmp_path: Path, server: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kept = put(tmp_path / "data", content)
    assert collect(files(tmp_path, server)) == GOOD
    assert f"{kept} is damaged" in caplog.text
    assert kept.read_bytes() == GOOD
    assert kept.with_name("part.x.damaged-1").read_bytes() == content


def test_a_damaged_file_is_left_alone_where_the_mirror_has_a_good_one(tmp_path: Path) -> None:
    kept = put(tmp_path / "data", b"mine")
    put(tmp_path / "mirror", GOOD)
    assert collect(files(tmp_path, mirror=tmp_path / "mirror")) == GOOD
    assert kept.read_bytes() == b"mine"


def test_a_damaged_download_is_not_kept(tmp_path: Path, server: str) -> None:
    (tmp_path / "served" / "part.x").write_bytes(b"<html>please log in</html>")
    with pytest.raises(FileNotFoundError, match="what came from there has SHA-256"):
        collect(files(tmp_path, server))
    assert not (tmp_path / "data" / "Some" / "raw" / "part.x").exists()


def test_offline_names_file_url_folder_and_what_was_damaged(tmp_path: Path) -> None:
    put(tmp_path / "data", b"")
    with pytest.raises(FileNotFoundError) as error:
        collect(files(tmp_path))
    for part in ("part.x", f"{UNREACHABLE}/part.x", str(tmp_path / "data" / "Some" / "raw"), "damaged", "(0 bytes)"):
        assert part in str(error.value)


def test_downloads_can_be_forbidden(tmp_path: Path, server: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"dataset\.download=false"):
        collect(files(tmp_path, server, download=False))


def test_a_file_missing_on_the_server(tmp_path: Path, server: str) -> None:
    (tmp_path / "served" / "part.x").unlink()
    with pytest.raises(FileNotFoundError, match="404"):
        collect(files(tmp_path, server))


def test_two_processes_at_once_on_an_empty_folder(tmp_path: Path, server: str) -> None:
    program = textwrap.dedent(f"""
        from pathlib import Path
        from src.data.raw import RawFiles
        with RawFiles("Some", {SHA256!r}, {server!r}, Path({str(tmp_path / "data")!r}), None, True).collected() as root:
            print((root / "Some" / "raw" / "part.x").read_text(), end="")
    """)
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in both] == [GOOD, GOOD]
    left = {path.name for path in (tmp_path / "data" / "Some" / "raw").iterdir()}
    assert left <= {"part.x", ".lock"}


def test_without_a_sum_a_file_must_be_a_sound_archive(tmp_path: Path) -> None:
    raw = RawFiles("Some", {"part.x": None}, UNREACHABLE, tmp_path / "data", None, True)
    path = put(tmp_path / "data", b"<html>")
    with pytest.raises(FileNotFoundError, match=r"is no \.npz archive"):
        collect(raw)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("member", "content" * 100)
    assert collect(raw)[:2] == b"PK"
    content = path.read_bytes().replace(b"contentcontent", b"cOntentcontent", 1)
    path.write_bytes(content)
    with pytest.raises(FileNotFoundError, match="has a broken member member"):
        collect(raw)


def test_the_embedded_archive_states_its_origin() -> None:
    assert (EMBEDDED / "CiteSeer.tar.xz").stat().st_size < 200_000
    assert "Apache License" in (EMBEDDED / "NOTICE").read_text()
