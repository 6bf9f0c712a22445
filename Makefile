# Two commands work on a machine with only Python 3.11 and make: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SOURCES := contract publisher engine router bench tests

# One thread a rank: with more, OpenMP threads of different ranks fight for the same cores.
export OMP_NUM_THREADS := 1

.PHONY: venv demo test check fmt clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvsteer needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,dev]'
	touch $(STAMP)

demo: venv
	$(BIN)/python -m bench demo $(if $(TRACE),--trace '$(TRACE)')

test: venv
	$(BIN)/python -m pytest -m 'not soak'
	$(BIN)/python -m pytest -m soak

check: venv
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layering.py

fmt: venv
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
