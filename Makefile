# Everything a fresh machine needs: `make demo` and `make test` create their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench clean

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[datasets]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(INSTALL) -e ".[datasets,test]"
	sh tests/browser.sh
	touch $@

demo: $(VENV)/.demo
	$(BIN)/leakgauge demo

test: $(VENV)/.test lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	$(BIN)/leakgauge bench speed
	$(BIN)/python benchmarks/speed/federation.py
	$(BIN)/python benchmarks/speed/flower.py

clean:
	rm -rf $(VENV)
