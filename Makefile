# make demo   sets up .venv with what using talkies needs, and makes a clip
# make test   adds test and lint tools to .venv, and passes the tests
# make test-slow  tests that take minutes each (FUZZ_SECONDS=600 fuzzes longer)
# make check  lint, types, import contracts               make test-kernels   the Triton kernels on a CPU (installs triton, 690 MB)
# make parity beside diffusers, on the same weights       make bench          what a CPU can measure, into bench/results
# make test-bounds  rooms with the newest and the oldest releases that pyproject.toml admits, in .venv-bounds (gigabytes)
# make figures  which file and commit each published figure rests on, and which of them are older than their code
# make docs   this documentation as a site, into site/; a link that leads nowhere ends it
# make gpu    the tests that need a CUDA device (with a PYTHON whose torch sees one)
# make plants  faults planted in a copy of the tree, and which of them no test notices (PLANTS='--plants 30 --seconds 1800')
PYTHON ?= python3
PLANTS ?=
VENV   := .venv
BIN    := $(VENV)/bin
USE    := $(VENV)/.installed
STAMP  := $(VENV)/.installed-dev
PIP    := $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-kernels test-bounds parity gpu bench docs figures plants check clean

# What using talkies needs, without what testing it needs.
$(USE): pyproject.toml constraints.txt
	@echo "installing talkies into $(VENV), without test and lint tools: torch is the largest package"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(STAMP): $(USE)
	@echo "installing test and lint tools into $(VENV)"
	$(PIP) -e '.[test,lint]'
	touch $@

demo: $(USE)
	$(BIN)/talkies generate "a red ball bounces slowly on a dark background with a bell sound" -o demo.mp4
	$(BIN)/talkies inspect demo.mp4

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not bench and not gpu"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "slow and not gpu"

test-kernels: $(STAMP)
	$(PIP) -e '.[kernels]'
	$(BIN)/python -m pytest -q -n 2 tests/kernels tests/placement

test-bounds:
	$(PYTHON) tests/bounds.py --python $(PYTHON) $(BOUNDS)

parity: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not gpu" tests/parity

gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu

bench: $(STAMP)
	$(BIN)/python -m bench.e2e_cpu
	$(BIN)/python -m bench.start
	$(BIN)/python -m bench.scheduling
	$(BIN)/python -m bench.load
	$(BIN)/python -m bench.meaning

plants: $(STAMP)
	$(BIN)/python -m tests.plant $(PLANTS)

docs: $(USE)
	$(PIP) -e '.[docs]'
	$(BIN)/mkdocs build --strict

figures: $(STAMP)
	$(BIN)/python -m bench.figures

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) demo.mp4
