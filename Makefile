# make train    install what is needed, train GGD on the embedded graph
# make test     install what is needed, run all tests, one process for each core
# make lint     ruff and mypy
# make clean    remove caches; the environment, data and outputs stay

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

.PHONY: train test lint clean

train: $(VENV)/.installed
	$(VENV)/bin/python -m src.train $(ARGS)

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $@
