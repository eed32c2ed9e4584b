# `make run` and `make test` set everything up on first use; a second call finds .venv and starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?= +path=native_4b
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-faults lint bench ui clean-venv

run: $(STAMP)
	@$(BIN)/python -m harness $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(TESTS)

# Real trainings that are killed, starved and cut off: each file a process, since most of their time is waiting; the
# longest ones come first.
FAULTS := $(shell grep -lr --include='test_*.py' mark.faults tests | sort -r)

test-faults: $(STAMP)
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target --keep-going $(FAULTS:%=faults-of/%)

faults-of/%: $(STAMP)
	$(BIN)/python -m pytest -q -m faults $*

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(STAMP)
	@for script in tests/bench/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

ui: $(STAMP)
	$(BIN)/mlflow ui --host 127.0.0.1 --backend-store-uri sqlite:///runs/mlflow.db

# torch goes first and alone, so that nothing else can pull in another build of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python >= 3.11 is needed, $(PYTHON) is older: make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,test]'
	@touch $(STAMP)

clean-venv:
	rm -rf $(VENV)
