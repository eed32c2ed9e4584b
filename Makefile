# `make run` and `make test` set everything up on first use; a second call finds .venv and starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?= +path=native_4b
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-faults test-cluster cluster-tools server lint bench ui clean-venv

run: $(STAMP)
	@$(BIN)/python -m harness $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(TESTS)

# Real trainings that are killed, starved and cut off: each file a process, since most of their time is waiting; the
# longest ones come first.
LONGEST := $(foreach name,signals trackers kill_moments,tests/faults/test_$(name).py)
FAULTS := $(LONGEST) $(filter-out $(LONGEST),$(shell grep -lr --include='test_*.py' mark.faults tests))

test-faults: $(STAMP)
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target --keep-going $(FAULTS:%=faults-of/%)

faults-of/%: $(STAMP)
	$(BIN)/python -m pytest -q -m faults $*

# Real Slurm and PostgreSQL, started and ended by the tests; what is missing they say.
test-cluster: $(STAMP)
	$(BIN)/python -m pytest -q -m cluster tests/cluster

# As root on Debian or Ubuntu: what test-cluster starts. A cluster of yours has its own.
cluster-tools: $(STAMP)
	apt-get update -qq || true
	apt-get install -y --no-install-recommends slurm-wlm munge postgresql
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cluster]'

# MLflow on PostgreSQL for many pilots at once, until Ctrl-C: make server SERVER='--host 0.0.0.0 --port 5000'
server: $(STAMP)
	@$(BIN)/python -m harness.server $(SERVER)

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
