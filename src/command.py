"""The door to every command: Hydra over ``conf/``, with a hint where a name is mistyped.

Kept free of heavy imports, so that ``--help`` answers at once.
"""

from __future__ import annotations

import atexit
import difflib
import functools
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

PROJECT_ROOT = Path(__file__).resolve().parents[1]


def sweep_name() -> str | None:
    """Name of the folder of the ``-m`` command that this job belongs to; None for a single run."""
    hydra_cfg = HydraConfig.get()
    return Path(hydra_cfg.sweep.dir).name if hydra_cfg.mode is RunMode.MULTIRUN else None


OmegaConf.register_new_resolver("project_root", lambda: str(PROJECT_ROOT), replace=True)
OmegaConf.register_new_resolver("sweep_name", sweep_name, replace=True)


def command(config_name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Turn ``run(cfg)`` into a command that reads ``conf/<config_name>.yaml`` and the command line."""

    def decorate(run: Callable[[DictConfig], Any]) -> Callable[[], None]:
        conf = str(PROJECT_ROOT / "conf")
        hydra_main = hydra.main(version_base="1.3", config_path=conf, config_name=config_name)(run)

        @functools.wraps(run)
        def main() -> None:
            sys.argv[1:] = expand_sweep(sys.argv[1:])
            # NumPy's threads turn in place for 2^28 cycles after each use, and take a core from what comes next.
            os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
            gc.set_threshold(20_000)  # the libraries make a million objects: to look for garbage in them takes a second
            atexit.register(gc.freeze)  # and one more at the end
            try:
                hydra_main()
            except SystemExit as stop:  # Hydra has printed its message; the exception that caused it is the context
                hint = nearest_key(stop.__context__)
                if hint:
                    print(hint, file=sys.stderr)
                raise
            except KeyboardInterrupt:  # what there was to say has been said
                raise SystemExit(130) from None

        return main

    return decorate


def expand_sweep(arguments: list[str]) -> list[str]:
    """Replace ``sweep=<name>`` by ``-m`` and the overrides of ``conf/sweep/<name>.yaml`` that are not given anyway.

    Raises:
        SystemExit: If there is no such file.
    """
    name = next((text.partition("=")[2] for text in arguments if text.startswith("sweep=")), None)
    if name is None:
        return arguments
    path = PROJECT_ROOT / "conf" / "sweep" / f"{name}.yaml"
    if not path.is_file():
        names = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise SystemExit(f"There is no sweep {name!r}; it can be {', '.join(names)}. Its file would be {path}")
    stated = [text for text in arguments if not text.startswith("sweep=")]
    keys = {text.partition("=")[0] for text in stated}
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    swept = [f"{key!s}={value}" for key, value in content.items() if key not in keys]
    return [*([] if "-m" in keys or "--multirun" in keys else ["-m"]), *stated, *swept]


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
