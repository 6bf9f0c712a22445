# Two commands work on a machine with only Python 3.11 and make: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP_FLAGS := --quiet --disable-pip-version-check
SOURCES := contract program publisher engine router bench tests kvsteer_pytest.py

# One thread a rank: with more, OpenMP threads of different ranks fight for the same cores.
export OMP_NUM_THREADS := 1

.PHONY: venv model demo test test-fast test-soak test-again interop peers bench check fmt clean

venv: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard */_*.c */*/_*.c */kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvsteer needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e '.[engine,dev]'
	touch $(STAMP)

# A real language model for two cores, into models/; done once.
model: venv
	$(BIN)/python -m bench model

demo: venv $(if $(filter smollm2,$(MODEL)),model)
	$(BIN)/python -m bench demo $(if $(TRACE),--trace '$(TRACE)') $(if $(MODEL),--model '$(MODEL)')

test: test-fast test-soak

test-fast test-soak: venv
	$(BIN)/python -m pytest -m '$(if $(filter test-soak,$@),soak,not soak)'

# Only what failed the last time.
test-again: venv
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# Drives released SGLang and vLLM (their caches and publishers; no GPU) against the router, each in an environment of
# its own: several GB and some minutes the first time.
interop: venv .venv-interop-sglang/.installed .venv-interop-vllm/.installed
	$(BIN)/python -m pytest tests/interop

.venv-interop-%/.installed: tests/interop/%-requirements.txt tests/interop/%-engine.txt tests/interop/%-constraints.txt
	$(PYTHON) -m venv .venv-interop-$*
	.venv-interop-$*/bin/pip install $(PIP_FLAGS) -c tests/interop/$*-constraints.txt -r tests/interop/$*-requirements.txt
	.venv-interop-$*/bin/pip install $(PIP_FLAGS) -c tests/interop/$*-constraints.txt --no-deps -r tests/interop/$*-engine.txt
	touch $@

# The routers and indexes that benches run beside ours, each in an environment of its own, none of them in ours.
peers: .venv-peer-dynamo/.installed .venv-peer-vllm-router/.installed .venv-peer-smg/.installed

.venv-peer-%/.installed: bench/peers/%-requirements.txt bench/peers/%-itself.txt
	$(PYTHON) -m venv .venv-peer-$*
	.venv-peer-$*/bin/pip install $(PIP_FLAGS) -r bench/peers/$*-requirements.txt
	.venv-peer-$*/bin/pip install $(PIP_FLAGS) --no-deps -r bench/peers/$*-itself.txt
	touch $@

# Every bench beside the peers that are installed; about twenty minutes on two cores. KEEP=1 puts the tables into bench/RESULTS.md.
bench: venv model
	$(BIN)/python -m bench all $(if $(KEEP),--record)

check: venv
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layering.py

fmt: venv
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/python tests/faults/table.py --write

clean:
	rm -rf $(VENV) .venv-interop-* .venv-peer-* .mypy_cache .ruff_cache .pytest_cache .hypothesis
