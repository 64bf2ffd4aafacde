# `make demo` and `make test` are the only two commands that a new machine needs: each first makes .venv.
.DEFAULT_GOAL := help
.PHONY: help demo test test-changed install lint format slow faults mutants bench reproduce pods pages docs lock clean engines hf

PYTHON := .venv/bin/python
DEMO := runs/demo
# Bytecode is kept even where an image says not to: each process would compile and rewrite every file of the tests again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest
# Compiling allocates and frees small blocks all the time: with jemalloc, where it is installed, tests take a tenth less.
JEMALLOC = $(firstword $(wildcard /usr/lib/*/libjemalloc.so.2 /usr/lib64/libjemalloc.so.2))

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## train a small translator, serve and then write the page of what every head attends to
	@.ci/install run
	$(PYTHON) -m launch.train --config=experiments/demo.py --workdir=$(DEMO) --serve
	$(PYTHON) -m launch.maps --workdir=$(DEMO)

test: ## run the tests (about 20 minutes on two cores, half of it from the second run on)
	@.ci/install dev
	LD_PRELOAD="$(JEMALLOC)" $(PYTEST) -m "not slow" -n 3 --dist loadfile

test-changed: ## run the tests that are nearest to the changes of the working tree
	@.ci/install dev
	@tests="$$($(PYTHON) -m tests.changed)"; if test -z "$$tests"; then echo "nothing that tests import has changed"; \
	else LD_PRELOAD="$(JEMALLOC)" $(PYTEST) -q -m "not slow" -n 2 --dist loadfile $$tests; fi

install: ## make .venv with all that the tests and linters need, and stop there
	@.ci/install dev

lint: ## check style, formatting and types, of the pages' JavaScript too where Node.js is installed
	@.ci/install dev
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	@.ci/javascript/check

format: ## rewrite the sources in the project's style
	@.ci/install dev
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

slow: ## run the tests that `make test` leaves out; MINUTES=20: those that begin by then, most valuable first
	@.ci/install dev
	LD_PRELOAD="$(JEMALLOC)" $(PYTEST) -m slow -n 2 --dist loadfile $(if $(MINUTES),--minutes=$(MINUTES) --no-loadscope-reorder)

faults: ## kill, tear, fill, flip and plant, and see that no run is lost and nothing changes in silence (an hour on two cores)
	@.ci/install dev
	$(PYTHON) -m tests.faults.run

mutants: ## plant a fault in one line of the code at a time, and see that tests fail of it (about an hour on two cores)
	@.ci/install dev
	$(PYTHON) -m tests.mutants.run

engines: ## check the file for SkyPilot by SkyPilot's own parser, in an environment of its own (.engines)
	@.ci/install dev
	test -x .engines/bin/python || $(PYTHON) -m venv .engines
	.engines/bin/python -m pip install --quiet skypilot
	$(PYTEST) tests/launch/test_engine_files.py

hf: ## compare every key of config.json with transformers, in an environment of its own (.hf); CASES="llama t5"
	@.ci/install dev
	test -x .hf/bin/python || $(PYTHON) -m venv .hf
	.hf/bin/python -m pip install --quiet torch==2.13.0 transformers==5.24.0 numpy==2.4.6
	rm -rf .hf/sweep
	.hf/bin/python tests/golden/make_sweep_logits.py .hf/sweep $(CASES)
	$(PYTHON) -m tests.golden.compare_sweep .hf/sweep

bench: ## measure what the loop, head statistics and maps add to the demo's bare step
	@.ci/install run
	$(PYTHON) -m experiments.benchmarks.run --name=loop
	$(PYTHON) -m experiments.benchmarks.run --name=capture
	$(PYTHON) -m experiments.benchmarks.run --name=maps

reproduce: ## train the runs of a record again and compare: make reproduce NAME=glue/words; without NAME list the records
	@.ci/install run
	$(PYTHON) -m experiments.reproduce $(if $(NAME),--name=$(NAME))

pods: ## compile every experiment for the pod that it names, and record what it needs there (hours on two cores)
	@.ci/install dev
	$(PYTHON) -m experiments.pods.compile_experiments

pages: ## measure how large pages of maps are, and how quick in a browser
	@.ci/install dev
	$(PYTHON) -m tests.maps.measure_page

docs: ## write the generated pages of docs/ and build the documentation site into site/
	@.ci/install docs
	$(PYTHON) -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict
	@echo "Open site/index.html in a browser. Its search needs a server: $(PYTHON) -m http.server --directory site"

# The lock of the tests takes that of the runs as its constraint, and the lock of the site that of the tests, so that one
# environment serves all three. The last two are those of the Dockerfile, each for one kind of accelerator.
UV_COMPILE = $(PYTHON) -m uv pip compile --quiet --upgrade --universal --python-version 3.12 --generate-hashes \
	--no-annotate --no-header pyproject.toml
lock: ## renew requirements/ from pyproject.toml, newest versions first
	@.ci/install dev
	@$(PYTHON) -m uv --version >/dev/null 2>&1 || $(PYTHON) -m pip install --quiet uv
	$(UV_COMPILE) -o requirements/run.txt
	$(UV_COMPILE) --extra test --extra lint --constraint requirements/run.txt -o requirements/dev.txt
	$(UV_COMPILE) --extra docs --constraint requirements/dev.txt -o requirements/docs.txt
	$(UV_COMPILE) --extra tpu --extra gcs --constraint requirements/dev.txt -o requirements/tpu.txt
	$(UV_COMPILE) --extra gpu --extra gcs --constraint requirements/dev.txt -o requirements/gpu.txt

clean: ## remove .venv and caches; runs/ stays
	rm -rf .venv .cache .engines .hf site .ci/javascript/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find transformer launch experiments docs tests -name __pycache__ -type d -prune -exec rm -rf {} +
