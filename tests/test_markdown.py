"""Marked places of Markdown files."""

from pathlib import Path

from src.markdown import fill_marked_places


def test_marked_places_are_filled_and_all_else_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "above\n<!-- a note -->\n<!-- table one: a -->\n{}<!-- end -->\n<!-- table two: a -->\nkept\n<!-- end -->\n"
    page.write_text(text.format("old\n"))
    for _ in range(2):  # a filled place can be filled again
        fill_marked_places(page, {"table one: a": "| \\1 |\n", "table three: a": "not there\n"})
        assert page.read_text() == text.format("| \\1 |\n")
