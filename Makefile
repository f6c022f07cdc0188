# Commands for users and developers; CI runs these same ones.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q

.PHONY: demo test test-frameworks check install docs bench sizes clean

demo: $(STAMP)  ## describe this machine, predict and measure the first jobs, write a report
	$(BIN)/python examples/first_flight.py

test: $(STAMP)  ## all tests, from nothing; tests that fail run once more, one after another
	$(PYTEST) -n 2 --dist worksteal || $(PYTEST) --last-failed --last-failed-no-failures none --maxfail 10

test-frameworks: $(STAMP)  ## build an environment for each framework and ask all of them the same ten steps
	WINDTUNNEL_ALL_FRAMEWORKS=1 $(PYTEST) tests/test_frameworks.py

check: $(STAMP)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)  ## the package with its extras in $(VENV)

docs: $(STAMP)  ## the documentation as a site in build/docs that needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open build/docs/index.html in a browser."

bench: $(STAMP)  ## how good and how fast, on this machine
	$(BIN)/python benchmarks/first_flight.py cpu
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/harness.py
	$(BIN)/python benchmarks/again.py

sizes:  ## lines per file and the longest function
	$(PYTHON) benchmarks/sizes.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[cluster,dev,docs,export,fused,learn,libraries,plots,web]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
