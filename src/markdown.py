"""Texts put into Markdown files that hold other things too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

END = "<!-- end -->"


def fill_marked_places(path: Path, texts: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- <mark> -->`` and ``<!-- end -->`` by the text of that mark; leave all else."""
    page = path.read_text()
    for mark, text in texts.items():
        before, found, rest = page.partition(f"<!-- {mark} -->\n")
        if found:
            page = before + found + text + END + rest.partition(END)[2]
    path.write_text(page)
