# Everything a fresh machine needs: `make demo`, `make test` and `make docs` create their own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint docs benchmarks bench gauntlet assault long locked hashes wheel-test clean

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[datasets]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(INSTALL) -e ".[datasets,test]"
	sh tests/browser.sh
	touch $@

$(VENV)/.docs: $(VENV)/.demo
	$(INSTALL) -e ".[datasets,docs]"
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

# The site is built without the network. The theme's notice about its successor is switched off.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in site/index.html. For its search box: $(BIN)/python -m http.server --directory site"

# The pages of the papers' tables, from their rows and results.
benchmarks: $(VENV)/.demo
	$(BIN)/leakgauge bench --readme

bench: $(VENV)/.test
	$(BIN)/leakgauge bench speed
	$(BIN)/python benchmarks/speed/federation.py
	$(BIN)/python benchmarks/speed/flower.py

# Full audits of every set-up with a known answer, about an hour. An interrupted run continues. GAUNTLET passes options.
gauntlet: $(VENV)/.test
	$(BIN)/python -m tests.known_answers.gauntlet $(GAUNTLET)

# Wrong input, hostile files, damaged caches, kills and faults of clients, some minutes. `make test` has the short form.
assault: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal --long tests/assault

# The long forms of all tests. `make test` has a cheaper form of each.
long: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal --long -m long

# An environment in which every package has the hash that hashes.txt expects, for `make test` and `make docs`. torch
# comes last and without such a check, because its builds differ from machine to machine.
locked:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r hashes.txt
	$(INSTALL) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	sh tests/browser.sh
	touch $(VENV)/.demo $(VENV)/.test $(VENV)/.docs

# After a change of constraints.txt: the hashes of all files that the package index has of these versions.
hashes: $(VENV)/.test
	sed -n '/^#/p' hashes.txt > hashes.new
	grep -v -e '^#' -e '^torch==' constraints.txt | $(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-header \
		--no-annotate --no-emit-index-url --no-emit-find-links --python-version 3.11.9 - >> hashes.new
	mv hashes.new hashes.txt

# The built wheel, installed with its extra into an environment of its own and run outside the repository.
wheel-test:
	sh tests/wheel.sh "$(PYTHON)"

clean:
	rm -rf $(VENV) site
