# make demo       install into .venv and run `iclbench demo`
# make test       lint, types and tests, as in CI
# make test-slow  tests that take seconds or minutes each, and all others with checks of the shapes in signatures
# make test-kernels  tests of the Triton kernel in Triton's interpreter (Linux; installs another gigabyte)
# make test-engines  sweeps on a real SLURM (as root, Debian's slurm-wlm) and a two-node Ray cluster (half an hour)
# make test-trackers  TensorBoard, Weights & Biases (offline) and MLflow (installs them)
# make test-docs  code blocks of the README and the pages of docs/, with a comparison of their output (minutes)
# make docs       the pages of docs/ as HTML, below docs/_build (installs Sphinx)
# make pages      README, guide and findings, rendered from docs/templates
# make figures    the figures of the README, from the packed results
# make dist       wheel, source distribution and the archive of the reference results, in dist/ (installs `build`)
# make reference-archive  the archive of the reference results, in dist/, and its checksum in the package
# make test-lowest  tests with the lowest versions of all dependencies except torch, in .venv-lowest (Python 3.11 or 3.12)
# make mutation   changes of the scientific core that no test detects: MUTANTS="iclbench.evaluation.*" (hours for all)
# make bench      speed as ratios to plain re-implementations

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# constraints.txt pins the version of torch. Modules are compiled on import, since compiling all modules of torch and
# transformers takes a minute.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
WORKERS ?= 2
MUTANTS ?= iclbench.evaluation.*
# Checks the shapes in signatures in all packages with tensors. Of `api`, only the module with tensors is checked, because
# tests pass arguments of wrong types to the others. Tests take 1.5 times as long.
SHAPES := --jaxtyping-packages=iclbench.api.table_model,iclbench.backbones,iclbench.contracts,iclbench.core,iclbench.deep_thinking,iclbench.estimators,iclbench.evaluation,iclbench.families,iclbench.language,iclbench.layers,iclbench.probing,iclbench.streaming,iclbench.training,beartype.beartype

export OMP_WAIT_POLICY := passive
# The tests start hundreds of processes. Only the first process should compile modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-kernels test-engines test-trackers test-docs test-lowest docs pages figures dist reference-archive mutation lint compiled bench clean

demo: $(VENV)/.installed
	$(BIN)/iclbench demo

# One worker runs all tests of a module, and all modules of a group (WORKER_GROUPS in tests/conftest.py), so that shared
# objects are created only once. Modules are compiled while mypy runs, so that each is compiled by only one process.
test: $(VENV)/.installed-dev
	$(MAKE) -j 2 lint compiled
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow and not docs and not engines"

test-slow: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow and not docs and not engines" $(SHAPES)

test-kernels: $(VENV)/.installed-kernels
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/layers/scan/test_scan_triton.py

test-engines: $(VENV)/.installed-engines
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engines

test-trackers: $(VENV)/.installed-trackers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/training/test_trackers.py

test-docs: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m docs tests/pages tests/docs tests/test_docstrings.py

# `>=` in the dependencies of pyproject.toml becomes `==`.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	sed -n '/^dependencies/,/^]/s/^ *"\([a-z0-9-]*\)>=\([0-9.]*\)".*/\1==\2/p' pyproject.toml | grep -v '^torch=' > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --disable-pip-version-check -c constraints.txt -c .venv-lowest/lowest.txt -e ".[dev]"
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow and not docs and not engines"

docs: $(VENV)/.installed-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

pages: $(VENV)/.installed-dev
	$(BIN)/python -m docs.render

figures: $(VENV)/.installed-dev
	$(BIN)/python -m docs.draw_figures

# The archive is written first, because the wheel contains its checksum.
dist: reference-archive
	$(PIP) build
	$(BIN)/python -m build

reference-archive: $(VENV)/.installed
	$(BIN)/python -m benchmarks.reference_archive

# Each mutant is run on the tests that call the changed function, the fastest first. A pattern selects mutants; an empty
# MUTANTS= selects mutants of all modules that are new or have changed.
mutation: $(VENV)/.installed-mutation
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 1 $(if $(MUTANTS),"$(MUTANTS)")
	$(BIN)/mutmut results
	$(BIN)/mutmut export-cicd-stats
	@cat mutants/mutmut-cicd-stats.json

compiled: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --collect-only > /dev/null || true  # the tests show the errors

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy -n $(WORKERS)

bench: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/estimators.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/backbones.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/state_spaces.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/set_backbones.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gaussian_processes.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/streaming.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sweep.py

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "iclbench needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a few hundred megabytes, one to three minutes) ..."
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing into $(VENV) (a few hundred megabytes, one to three minutes) ..."
	$(PIP) -e ".[dev]"
	@touch $(VENV)/.installed $@

$(VENV)/.installed-kernels: $(VENV)/.installed-dev
	$(PIP) -e ".[kernels]"
	@touch $@

$(VENV)/.installed-engines: $(VENV)/.installed-dev
	$(PIP) -e ".[slurm,ray]"
	@touch $@

$(VENV)/.installed-trackers: $(VENV)/.installed-dev
	$(PIP) -e ".[tensorboard,wandb,mlflow]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/.installed-mutation: $(VENV)/.installed-dev
	$(PIP) -e ".[mutation]"
	@touch $@

clean:
	rm -rf $(VENV) .venv-lowest build dist docs/_build docs/reference mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
