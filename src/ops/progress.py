"""Progress of work that takes long."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tqdm.auto import tqdm

log = logging.getLogger(__name__)

SECONDS_PER_LINE = 10


def watched(pieces: Iterable[Any], total: int, what: str, size: Callable[[Any], int]) -> Iterator[Any]:
    """Yield the pieces, with a bar on a terminal, and a line now and then elsewhere."""
    done, last_line = 0, time.monotonic()
    with tqdm(total=total, desc=what, unit_scale=True, disable=not sys.stderr.isatty()) as bar:
        for piece in pieces:
            yield piece
            done += size(piece)
            bar.update(size(piece))
            if bar.disable and time.monotonic() > last_line + SECONDS_PER_LINE:
                last_line = time.monotonic()
                log.info("%s: %.0f %%", what, 100 * done / max(1, total))
