"""Markdown: tables, and texts put into files that hold other things too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

END = "<!-- end -->"


def pipe_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of a heading and rows of as many cells."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill_marked_places(path: Path, texts: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- <mark> -->`` and ``<!-- end -->`` by the text of that mark; leave all else."""
    page = path.read_text()
    for mark, text in texts.items():
        before, found, rest = page.partition(f"<!-- {mark} -->\n")
        if found:
            page = before + found + text + END + rest.partition(END)[2]
    path.write_text(page)
