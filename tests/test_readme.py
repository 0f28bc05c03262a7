"""Every command that the README shows does what it says, shortened to a few steps."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from src.command import PROJECT_ROOT
from tests.conftest import MIRROR, Run

README = (PROJECT_ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
LINES = [line.split(" #")[0].strip() for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("python -m ")]
QUICK = {
    "src.train": ["trainer.max_steps=2", "evaluation.references=false"],
    "src.reproduce": ["--cfg", "job"],  # hundreds of runs; test_reproduce.py runs a table
    "src.benchmark": ["--cfg", "job"],  # many minutes; test_benchmark.py runs a small one
}
NOT_EMBEDDED = {
    "cora": "Cora",
    "pubmed": "PubMed",
    "photo": "Photo",
    "computers": "Computers",
    "ogbn-arxiv": "ogbn_arxiv",
    "ogbn-products": "ogbn_products",
}


@pytest.mark.command
@pytest.mark.parametrize("line", COMMANDS)
def test_command(run: Run, line: str) -> None:
    module, *arguments = shlex.split(line.removeprefix("python -m "))
    for name, folder in NOT_EMBEDDED.items():
        if name in line and not (MIRROR / folder).is_dir():
            pytest.skip(f"{folder} is not embedded: set GGD_DATA_MIRROR to a folder with {folder}/raw")
    shorter = [text.replace("seed=0,1,2,3,4", "seed=0,1") for text in arguments]
    quick = [] if "--help" in arguments else QUICK[module]
    outcome = run(*shorter, *quick, module=module, GGD_DATA_MIRROR=str(MIRROR))
    assert outcome.returncode == 0, outcome.stderr


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) >= 5
    assert {"make train", "make test"} <= set(LINES)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make ([a-z]+)`?", README))))
def test_make_targets_exist(target: str) -> None:
    outcome = subprocess.run(["make", "--dry-run", target], cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
