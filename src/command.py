"""The door to every command: Hydra over ``conf/``, with a hint where a name is mistyped.

Kept free of heavy imports, so that ``--help`` answers at once.
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

PROJECT_ROOT = Path(__file__).resolve().parents[1]

OmegaConf.register_new_resolver("project_root", lambda: str(PROJECT_ROOT), replace=True)


def command(config_name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Turn ``run(cfg)`` into a command that reads ``conf/<config_name>.yaml`` and the command line."""

    def decorate(run: Callable[[DictConfig], Any]) -> Callable[[], None]:
        conf = str(PROJECT_ROOT / "conf")
        hydra_main = hydra.main(version_base="1.3", config_path=conf, config_name=config_name)(run)

        @functools.wraps(run)
        def main() -> None:
            try:
                hydra_main()
            except SystemExit as stop:  # Hydra has printed its message; the exception that caused it is the context
                hint = nearest_key(stop.__context__)
                if hint:
                    print(hint, file=sys.stderr)
                raise

        return main

    return decorate


def nearest_key(error: BaseException | None) -> str | None:
    """Say which keys there are where an override named one that is not, the nearest first."""
    while error is not None:
        parent, key = getattr(error, "parent_node", None), getattr(error, "key", None)
        if isinstance(parent, DictConfig) and isinstance(key, str) and key not in parent:
            place = parent._get_full_key(None) or "the top level"
            close = difflib.get_close_matches(key, [str(k) for k in parent], n=1)
            guess = f"Did you mean {close[0]!r}? " if close else ""
            return f"\nThere is no {key!r} in {place}. {guess}It has: {', '.join(map(str, parent))}."
        error = error.__cause__ or error.__context__
    return None
