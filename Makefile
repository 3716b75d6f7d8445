# Every target makes and reuses its own virtual environment; only Python >= 3.11, make and a package index are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-slow bench bench-bound bench-profile bench-memory bench-fit bench-large bench-predict bench-methods bench-peers bench-scale lint format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("integrand needs Python >= 3.11, this is " + sys.version.split()[0] + ": set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## ML-II beside integration on an embedded data set, with a report
	$(BIN)/integrand demo

# Tests compile much and compute little: with these emitters XLA compiles faster, for slower programs. A file stays with
# one process, which has compiled what its other tests need.
test: export XLA_FLAGS := --xla_cpu_use_fusion_emitters=false $(XLA_FLAGS)
test: $(STAMP) ## the default suite (minutes)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-slow: $(STAMP) ## statistical suites (tens of minutes)
	$(BIN)/python -m pytest -n 2 -m slow --timeout=7200 $(ARGS)

bench: bench-bound bench-memory bench-fit bench-predict bench-large ## all benchmarks

bench-bound: $(STAMP) ## time of the bound's value and gradient against its floor
	$(BIN)/python benchmarks/bound_time.py $(ARGS)

bench-profile: $(STAMP) ## what a value and gradient of the bound spends its time on, and how many chains fill the cores
	$(BIN)/python benchmarks/bound_profile.py $(ARGS)

bench-memory: $(STAMP) ## memory of the bound's value and gradient at a million rows
	$(BIN)/python benchmarks/bound_memory.py $(ARGS)

bench-fit: $(STAMP) ## whole fits of the paper's data sets in fresh processes
	$(BIN)/python benchmarks/fit_time.py $(ARGS)

bench-large: $(STAMP) ## a complete fit with 100 000 rows under a budget
	$(BIN)/python benchmarks/large_fit.py $(ARGS)

bench-predict: $(STAMP) ## seconds and memory of predicting 100 000 rows from the command line
	$(BIN)/python benchmarks/predict_time.py $(ARGS)

bench-methods: $(STAMP) ## every method and sampler on yacht and boston, and how a gradient grows with N and M
	$(BIN)/python benchmarks/method_time.py $(ARGS)

bench-scale: $(STAMP) ## time of a gradient against rows and processes; WHAT=fit or disk: millions of rows
	$(BIN)/python benchmarks/scale/run.py $(or $(WHAT),growth) $(ARGS)

bench-peers: $(STAMP) ## side by side with six other packages, hours (QUICK=1: minutes)
	$(BIN)/python benchmarks/peers/run.py --install $(if $(QUICK),--profile quick) $(ARGS)
	$(BIN)/python benchmarks/peers/run.py $(if $(QUICK),--profile quick) $(ARGS)

lint: $(STAMP) ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP) ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
