"""The door: mistyped names, help, and where things are put."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from src.command import PROJECT_ROOT, nearest_key
from tests.conftest import Run

pytestmark = pytest.mark.command


@pytest.mark.parametrize(
    ("override", "hints"),
    [
        ("dataset=corra", ["Could not find 'dataset/corra'", "\tcora\n"]),
        ("model=ggdd", ["Could not find 'model/ggdd'", "\tggd\n"]),
        ("model.hiden_dim=3", ["There is no 'hiden_dim' in model. Did you mean 'hidden_dim'?", "hops"]),
        ("sed=3", ["There is no 'sed' in the top level. Did you mean 'seed'?"]),
    ],
)
def test_mistyped_names(run: Run, override: str, hints: list[str]) -> None:
    outcome = run(override)
    assert outcome.returncode != 0
    for hint in hints:
        assert hint in outcome.stderr


def test_help_names_groups_settings_and_examples(run: Run) -> None:
    outcome = run("--help")
    assert outcome.returncode == 0
    for part in ("dataset: citeseer, computers, cora, cs, custom, ogbn-arxiv", "learning_rate:", "Examples:"):
        assert part in outcome.stdout


def test_help_and_typos_wait_for_no_heavy_import() -> None:
    program = "import sys, src.train; print({'torch', 'pytorch_lightning', 'sklearn'} & set(sys.modules))"
    outcome = subprocess.run([sys.executable, "-c", program], cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert outcome.stdout == "set()\n", outcome.stderr


def test_nearest_key_finds_the_cause_of_an_error() -> None:
    config = OmegaConf.create({"model": {"hidden_dim": 1}})
    OmegaConf.set_struct(config, True)
    with pytest.raises(ConfigAttributeError) as error:
        OmegaConf.update(config, "model.hidden_dims", 3)
    hint = "\nThere is no 'hidden_dims' in model. Did you mean 'hidden_dim'? It has: hidden_dim."
    assert nearest_key(error.value) == hint
    assert nearest_key(ValueError("something else")) is None
    assert nearest_key(None) is None


def test_an_interrupted_command_ends_without_a_traceback(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(
        """
from src.command import command

@command("train")
def main(cfg):
    raise KeyboardInterrupt

main()
"""
    )
    outcome = subprocess.run(
        [sys.executable, script, f"hydra.run.dir={tmp_path}/run"], env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert outcome.returncode == 130
    assert outcome.stderr == ""
