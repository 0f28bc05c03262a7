"""The files of the Open Graph Benchmark on this machine: found, or downloaded and unpacked."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import requests
from filelock import FileLock

from src.data.download import download, remote_size
from src.data.ogb_format import PARTS
from src.ops.checks import check_disk

log = logging.getLogger(__name__)

ARCHIVE_GB = {"ogbn-arxiv": 0.09, "ogbn-products": 1.5, "ogbn-papers100M": 60.3}
"""The datasets, and the size of the download where the server does not say, about. A GB is 10^9 bytes."""


@dataclass(frozen=True)
class OGBFiles:
    """The files of one dataset, laid out as OGB does: ``ogbn_arxiv/raw/``, ``ogbn_arxiv/split/``, ...

    Nothing in the user's folder is deleted or overwritten. OGB publishes no sums, so that trust goes as far as the zip
    archive's own sums, which show damage but no forgery; hence nothing in the archive is run, see ``read_split``.

    Attributes:
        name: The dataset's name in OGB.
        data_dir: The user's data folder, where downloads are kept.
        mirror: A read-only folder of the same layout, or None.
        download: Whether files that are in neither may be downloaded.
    """

    name: str
    data_dir: Path
    mirror: Path | None
    download: bool

    @functools.cached_property
    def published(self) -> dict[str, str]:
        """What OGB's table says of the dataset."""
        with silent_ogb():
            import ogb.nodeproppred
        table = Path(ogb.nodeproppred.__file__).with_name("master.csv")
        return pd.read_csv(table, index_col=0, keep_default_na=False)[self.name].to_dict()

    @property
    def binary(self) -> bool:
        return self.published["binary"] == "True"

    @property
    def release(self) -> str:
        return f"RELEASE_v{self.published['version']}.txt"

    @property
    def folder(self) -> Path:
        return self.data_dir / self.name.replace("-", "_")

    @property
    def archive(self) -> Path:
        """Of the user, who may have fetched it by other means."""
        return self.data_dir / f"{self.published['download_name']}.zip"

    @property
    def partial(self) -> Path:
        """Our own download of the archive, until it is unpacked."""
        return self.archive.with_name(f"{self.archive.name}.partial")

    @functools.cached_property
    def archive_bytes(self) -> int:
        """Size of the archive, as the server says; else about."""
        if self.archive.is_file():
            return self.archive.stat().st_size
        return remote_size(self.published["url"]) or int(ARCHIVE_GB[self.name] * 1e9)

    @property
    def remaining_bytes(self) -> int:
        """What of the archive is not on the disk yet."""
        there = next((path.stat().st_size for path in (self.archive, self.partial) if path.exists()), 0)
        return max(0, self.archive_bytes - there)

    def missing(self, folder: Path) -> list[str]:
        """Return the files that a folder lacks."""
        csv = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")
        raw = ["data.npz", "node-label.npz"] if self.binary else [f"{name}.csv.gz" for name in csv]
        split = f"split/{self.published['split']}"
        parts = [f"{split}/{part}.csv.gz" for part in PARTS.values()]
        if (folder / split / "split_dict.pt").is_file():
            parts = []
        return [name for name in [f"raw/{name}" for name in raw] + parts if not (folder / name).is_file()]

    def find(self) -> Path | None:
        """Return the folder that holds all files; None if it can be made by a download.

        Raises:
            FileNotFoundError: If it can't or may not be.
        """
        for folder in (self.folder, self.mirror and self.mirror / self.folder.name):
            if folder and not self.missing(folder):
                return folder
        if self.folder.exists():
            raise self._not_found(f"{self.folder} is there, but not whole: complete it, or move it away")
        if not self.download and not self.archive.is_file():
            raise self._not_found("dataset.download=false")
        return None

    def obtain(self) -> Path:
        """Return the folder that holds all files; download and unpack them if need be, one process at a time.

        Raises:
            FileNotFoundError: If files are missing, and can't or may not be downloaded.
            OSError: If they do not fit on the disk.
        """
        found = self.find()
        if found:
            return found
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(self.data_dir / f".{self.folder.name}.lock"):
            return self.find() or self._fetch()

    def _fetch(self) -> Path:
        url, ours = self.published["url"], not self.archive.is_file()
        archive = self.partial if ours else self.archive
        try:
            if ours:
                log.info("Downloading %s (%s) to %s", url, gigabytes(self.archive_bytes), archive)
                download(url, archive, self.archive_bytes)
            self._unpack(archive)
        except requests.RequestException as error:
            raise self._not_found(f"{url}: {error}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            with archive.open("rb") as file:
                fault = f"{archive} ({archive.stat().st_size:,} bytes, beginning {file.read(16)!r}): {error}"
            if ours:
                archive.unlink()  # or the next run would go on after it
            raise self._not_found(fault) from error
        if ours:
            archive.unlink()
        return self.folder

    def _unpack(self, archive: Path) -> None:
        """Unpack beside, which checks all sums, and rename, so that the folder is there as a whole or not at all."""
        with (
            zipfile.ZipFile(archive) as members,
            tempfile.TemporaryDirectory(dir=self.data_dir, prefix=f"{self.folder.name}.partial-") as scratch,
        ):
            size = sum(member.file_size for member in members.infolist())
            check_disk(self.data_dir, size)
            log.info("Unpacking %s, %s", archive, gigabytes(size))
            members.extractall(scratch)
            unpacked = Path(scratch) / self.published["download_name"]
            missing = self.missing(unpacked)
            if missing:
                raise zipfile.BadZipFile(f"it lacks {', '.join(missing)} in {unpacked.name}/")
            unpacked.rename(self.folder)

    def _not_found(self, reason: str) -> FileNotFoundError:
        lacking = ", ".join(self.missing(self.folder))
        return FileNotFoundError(
            f"The files of {self.name} are not to be had: {reason}.\n{self.folder} lacks {lacking}. Unpack "
            f"{self.published['url']} to there by hand, or set GGD_DATA_MIRROR to a folder with {self.folder.name}/."
        )


@contextlib.contextmanager
def silent_ogb() -> Iterator[None]:
    """Import ``ogb`` without its search for a newer version on the network, which needs the package ``outdated``."""
    before = sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["outdated"]
        if before:
            sys.modules["outdated"] = before


def gigabytes(size: float) -> str:
    """Return a number of bytes in GB (10^9 bytes)."""
    return f"{size / 1e9:,.3g} GB"
