"""Raw files: found, checked against their sums before anything reads them, downloaded where they are missing."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import os
import shutil
import socket
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from torch_geometric.data import download_url

log = logging.getLogger(__name__)

EMBEDDED = Path(__file__).parent / "embedded"
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class RawFiles:
    """The raw files of one dataset, laid out as PyTorch Geometric expects them: ``<folder>/raw/<file>``.

    Attributes:
        folder: Name of the dataset's folder.
        sha256: File name to SHA-256, or to None where no sum is published; such a file must be a sound ``.npz``.
        url: Where ``<url>/<file>`` can be downloaded.
        data_dir: The user's data folder. Downloads are kept there; nothing in it is deleted or overwritten.
        mirror: A read-only folder of the same layout, or None.
        download: Whether files that are nowhere else may be downloaded.
    """

    folder: str
    sha256: Mapping[str, str | None]
    url: str
    data_dir: Path
    mirror: Path | None
    download: bool

    @contextlib.contextmanager
    def collected(self) -> Iterator[Path]:
        """Yield a scratch root that holds a checked copy of every file as ``<root>/<folder>/raw/<file>``.

        Files are looked for in the data folder, then the mirror, then the package, then at the URL. PyTorch Geometric
        parses the copies and keeps its cache beside them, so that no cache outlives the files that it was made from.

        Raises:
            FileNotFoundError: If a file is nowhere, or what was found is damaged and no sound one can be had.
        """
        with tempfile.TemporaryDirectory(prefix="ggd-") as scratch:
            raw = Path(scratch) / self.folder / "raw"
            raw.mkdir(parents=True)
            for name in self.sha256:
                self._collect(name, raw / name)
            yield Path(scratch)

    def _collect(self, name: str, destination: Path) -> None:
        damaged = []
        for root in (self.data_dir, self.mirror):
            source = root / self.folder / "raw" / name if root else None
            if source and source.is_file():
                shutil.copyfile(source, destination)
                fault = self._fault(name, destination)
                if not fault:
                    return
                damaged.append(f"{source} {fault}")
                log.warning("%s is damaged: it %s. Looking elsewhere.", source, fault)
        if not self._extract_embedded(name, destination):
            self._download(name, destination, damaged)

    def _extract_embedded(self, name: str, destination: Path) -> bool:
        archive = EMBEDDED / f"{self.folder}.tar.xz"
        if not archive.exists():
            return False
        with tarfile.open(archive) as files:
            member = files.extractfile(name)
            assert member is not None
            destination.write_bytes(member.read())
        return self._fault(name, destination) is None

    def _download(self, name: str, destination: Path, damaged: list[str]) -> None:
        """Download a file into the data folder, one process at a time, and copy it to ``destination``."""
        folder = self.data_dir / self.folder / "raw"
        kept, url = folder / name, f"{self.url}/{name}"
        try:
            if not self.download:
                raise OSError("dataset.download=false")
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / ".lock"):
                if kept.is_file() and not self._fault(name, kept):
                    shutil.copyfile(kept, destination)  # another process fetched it while this one waited
                    return
                log.info("Downloading %s to %s", url, folder)
                destination.unlink(missing_ok=True)
                with _socket_timeout(TIMEOUT_SECONDS):
                    download_url(url, str(destination.parent), log=False, filename=name)
                fault = self._fault(name, destination)
                if fault:
                    raise OSError(f"what came from there {fault}")
                if kept.exists():
                    aside = _free_name(kept)
                    kept.rename(aside)
                    log.warning("Kept the damaged file as %s", aside)
                partial = folder / f"{name}.partial-{os.getpid()}"
                shutil.copyfile(destination, partial)
                os.replace(partial, kept)
        except (OSError, http.client.HTTPException) as error:
            found = "".join(f"\n  - damaged: {line}" for line in damaged)
            raise FileNotFoundError(
                f"The file {name} of {self.folder} is not to be had: {url}: {error}.{found}\n"
                f"Put it by hand into {folder}, or set GGD_DATA_MIRROR to a folder that holds {self.folder}/raw/{name}."
            ) from error

    def _fault(self, name: str, path: Path) -> str | None:
        """Say what is wrong with a file, or None."""
        size, expected = path.stat().st_size, self.sha256[name]
        if expected is None:
            try:
                with zipfile.ZipFile(path) as archive:
                    broken = archive.testzip()
            except zipfile.BadZipFile:
                return f"is no .npz archive ({size:,} bytes)"
            return f"has a broken member {broken} ({size:,} bytes)" if broken else None
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
        return None if actual == expected else f"has SHA-256 {actual[:16]}…, not {expected[:16]}… ({size:,} bytes)"


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Give up on a server that stays silent; ``download_url`` takes no time limit of its own."""
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous)


def mirror_folder() -> Path | None:
    """Return the folder that the environment variable GGD_DATA_MIRROR names, if there is one."""
    mirror = os.environ.get("GGD_DATA_MIRROR")
    if mirror and not Path(mirror).is_dir():
        log.warning("GGD_DATA_MIRROR=%s is not a folder, and is not used", mirror)
    return Path(mirror) if mirror else None


def _free_name(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return candidate
