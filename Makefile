# make test and make run do everything on a fresh machine; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup quick test lint unit browser format run picture choose frameworks report bench sanitize fuzz clean

help:  ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# constraints.txt pins the whole development environment (torch to a CPU build where one is found).
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable '.[torch,jax,experiments,ray,dask]' --group dev
	@touch $@

setup: $(READY)  ## Build .venv with everything for development

quick: $(READY)  ## The tests that are not slow: no mutations, killed sweeps or compiled pairs
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test: lint unit  ## Lint, types and the test suite with coverage

lint: $(READY)  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(READY) browser  ## The test suite
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term

# For the test that opens the report's page. Nothing is installed but by root, as in a container.
browser:  ## Install Debian's Chromium, where that is possible
	@command -v chromium > /dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get install -y -qq chromium > /dev/null; } \
	  || echo "no Chromium here: the test that opens the report's page is skipped"

format: $(READY)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

run: $(READY)  ## Run the main experiment: learn to sort images of numbers, and show the result
	$(BIN)/softorder run sort

picture: $(READY)  ## Draw the README's picture anew
	$(BIN)/python examples/quickstart.py docs/softening.png

choose: $(READY)  ## Write docs/how_to_choose.md from what was found and measured
	$(BIN)/python -m tools.how_to_choose

frameworks: $(READY)  ## Write docs/frameworks.md: what each framework has, as the tests find it
	$(BIN)/python tests/framework_table.py

report: $(READY)  ## Write docs/report.html and the README's figures and tables from records/
	$(BIN)/python -m tools.results_pages

# The peers, each by itself: one that cannot be installed does not stop the others, and its rows
# say so. torchsort has no wheel, and takes any nvcc on the path for a wish to have CUDA; hide it.
PEER := $(BIN)/python -m pip install --quiet --constraint constraints.txt
$(VENV)/.peers: $(READY)
	-env -u CUDA_HOME PATH=/usr/bin:/bin $(PEER) --no-build-isolation torchsort==0.1.10
	-$(PEER) diffsort==0.2.0
	-$(PEER) difftopk==0.2.0
	-$(PEER) POT==0.9.7.post1
	-$(PEER) ott-jax==0.6.0 jax==0.10.2
	@touch $@

bench: $(VENV)/.peers  ## Measure time and memory against the dense formula and peers (hours, idle machine)
	$(BIN)/python -m benchmarks

# The kernel's tests on a build with the address and undefined-behaviour sanitizers.
sanitize: $(READY)  ## Run the kernel's tests under sanitizers
	$(BIN)/python tests/sanitize.py

# Each finding is a line that says how to repeat it; SEED=1000000 examines other cases.
MINUTES ?= 3
SEED ?= 0
fuzz: $(READY)  ## Compare random cases with oracles, engines and frameworks (MINUTES=60)
	$(BIN)/python tests/fuzz.py --minutes $(MINUTES) --seed $(SEED)

clean:  ## Remove .venv and caches
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis .coverage
