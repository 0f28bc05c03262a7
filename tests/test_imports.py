"""Imports point one way: ops <- graph <- data, models, evaluation <- commands."""

import ast
from pathlib import Path

import pytest

from src.command import PROJECT_ROOT

ALLOWED = {
    "ops": {"ops"},
    "graph": {"ops"},
    "data": {"ops", "graph", "data"},
    "models": {"ops", "graph", "models"},
    "evaluation": {"ops", "graph", "evaluation"},
}
SOURCES = sorted((PROJECT_ROOT / "src").rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """Full names of all modules that a file imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"src.{alias.name}" for alias in node.names} if node.module == "src" else {node.module}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PROJECT_ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(PROJECT_ROOT / "src").parts[0].removesuffix(".py")
    rooms = {module.split(".")[1] for module in imported_modules(path) if module.startswith("src.")}
    assert room not in ALLOWED or rooms <= ALLOWED[room]


def test_only_commands_see_the_configuration() -> None:
    packages = {path.name: {m.split(".")[0] for m in imported_modules(path)} for path in SOURCES}
    readers = {name for name, imported in packages.items() if imported & {"omegaconf", "hydra"}}
    commands = {"benchmark.py", "dashboard.py", "report.py", "reproduce.py", "sweep.py", "train.py"}
    assert readers == commands | {"command.py"}
