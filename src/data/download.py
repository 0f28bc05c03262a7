"""A large file over HTTP, gone on with where an earlier transfer stopped."""

from __future__ import annotations

import logging
from pathlib import Path

import requests

from src.data.raw import TIMEOUT_SECONDS
from src.ops.progress import watched

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**16


def remote_size(url: str) -> int | None:
    """Return the bytes of a file on a server; None if it does not say, or does not answer."""
    try:
        answer = requests.head(url, allow_redirects=True, timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        return int(answer.headers["Content-Length"])
    except (requests.RequestException, KeyError):
        return None


def download(url: str, path: Path, size: int) -> None:
    """Download a file to ``path``, after what an earlier call has left there.

    A broken transfer is taken up again as long as it moves on. Whether the parts belong together is for the caller to
    check: the file on the server may have changed in between.

    Args:
        url: Of the file.
        path: Where to; kept if the transfer fails, so that the next call goes on.
        size: Bytes to expect, for the progress that is shown.

    Raises:
        requests.RequestException: If the server does not answer, refuses, or breaks off where it began.
    """
    while True:
        have = path.stat().st_size if path.exists() else 0
        try:
            _transfer(url, path, have, size)
            return
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            if not path.exists() or path.stat().st_size <= have:
                raise
            log.warning("%s broke off (%s); going on after %s bytes", url, error, f"{path.stat().st_size:,}")


def _transfer(url: str, path: Path, have: int, size: int) -> None:
    # Encoded content would have another length and other ranges than the file itself.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        if have and response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # nothing comes after what is there
        response.raise_for_status()
        resumed = response.status_code == requests.codes.partial_content
        with path.open("ab" if resumed else "wb") as file:
            chunks = response.iter_content(CHUNK_BYTES)
            for chunk in watched(chunks, size - have if resumed else size, f"downloading {path.name}", len):
                file.write(chunk)
