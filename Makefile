# make demo       install into .venv and run the main job on embedded defaults
# make test       lint, types, tests: what CI runs
# make test-slow  tests that take seconds each, and all others with the shapes in signatures checked
# make test-kernels  the Triton kernel in Triton's interpreter (Linux; installs one more gigabyte)
# make test-engines  sweeps on a real SLURM (as root, Debian's slurm-wlm) and a two-node Ray cluster (half an hour)
# make test-trackers  TensorBoard, Weights & Biases (offline) and MLflow (installs them)
# make test-docs  every block of the README and the pages of docs/, its output compared; long examples (minutes)
# make docs       the pages of docs/ as HTML, below docs/_build (installs Sphinx)
# make pages      README, guide and findings, rendered from docs/templates
# make figures    the figures of the README, from the packed results
# make mutation   which changes of the scientific core no test notices: MUTANTS="iclbench.evaluation.*" (hours for all)
# make bench      speed as ratios against plain re-implementations

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A branch of torch per machine: constraints.txt pins the CPU build. Modules are compiled as they are imported: to compile
# all that torch and transformers bring takes a minute.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
WORKERS ?= 2
MUTANTS ?= iclbench.evaluation.*
# Checks the shapes in signatures in every package with tensors, which takes half as long again.
SHAPES := --jaxtyping-packages=iclbench.backbones,iclbench.contracts,iclbench.core,iclbench.deep_thinking,iclbench.estimators,iclbench.evaluation,iclbench.families,iclbench.language,iclbench.layers,iclbench.probing,iclbench.streaming,iclbench.training,beartype.beartype

export OMP_WAIT_POLICY := passive
# The tests start hundreds of processes: modules are compiled for the first of them alone.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-kernels test-engines test-trackers test-docs docs pages figures mutation lint bench clean

demo: $(VENV)/.installed
	$(BIN)/iclbench demo

# The tests of a module stay with one worker, and so do modules that share more (SHARED in tests/conftest.py): what they
# share is made once.
test: $(VENV)/.installed-dev lint
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

docs: $(VENV)/.installed-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

pages: $(VENV)/.installed-dev
	$(BIN)/python -m docs.render

figures: $(VENV)/.installed-dev
	$(BIN)/python -m docs.draw_figures

# Each mutant meets the tests that call the changed function, the fastest first. A pattern tries all that it fits;
# MUTANTS= (nothing) goes on with whatever was not tried before, or has changed since, in all modules.
mutation: $(VENV)/.installed-mutation
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 1 $(if $(MUTANTS),"$(MUTANTS)")
	$(BIN)/mutmut results
	$(BIN)/mutmut export-cicd-stats
	@cat mutants/mutmut-cicd-stats.json

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
	rm -rf $(VENV) build dist docs/_build docs/reference mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
