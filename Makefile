# make demo   sets up .venv and makes a clip          make test   sets up .venv and passes the tests
# make test-kernels   the Triton kernels, interpreted and compiled on a CPU (installs triton, 690 MB)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-kernels check clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	touch $@

demo: $(STAMP)
	$(BIN)/talkies generate "a red ball bounces slowly on a dark background with a bell sound" -o demo.mp4
	$(BIN)/talkies inspect demo.mp4

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not gpu"

test-kernels: $(STAMP)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[kernels]'
	$(BIN)/python -m pytest -q -n 2 tests/kernels tests/placement

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) demo.mp4
