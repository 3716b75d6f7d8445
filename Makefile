# Every target makes and reuses its own virtual environment; only Python >= 3.11, make and a package index are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs

.PHONY: help demo check test test-slow test-oldest bench bench-bound bench-profile bench-memory bench-fit bench-large bench-predict bench-reweighting bench-methods bench-likelihoods bench-findings bench-inducing bench-categories bench-peers bench-scale bench-truth bench-update bench-warped docs lint format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# pip 25.1 is the first that installs dependency groups; Python 3.11 and 3.12 come with an older one.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("integrand needs Python >= 3.11, this is " + sys.version.split()[0] + ": set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e '.[all]' --group dev
	@touch $@

demo: $(STAMP) ## ML-II beside integration on an embedded data set, with a report
	$(BIN)/integrand demo

# The fast tenth of the suite: no fits but one, no other processes, and what tells soonest that something is broken.
QUICK := tests/architecture tests/data tests/posterior/test_mixture.py tests/test_model.py tests/test_metrics.py \
	tests/infer/test_verdict.py tests/infer/test_convergence.py tests/infer/test_optimise.py \
	'tests/contracts/test_methods.py::test_says_what_it_did[sgpr-hmc]' \
	$(addprefix --ignore=tests/data/test_,processes.py faults.py devices.py)

check: $(STAMP) ## lint, types and the fast tenth of the suite (under a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright & types=$$!; $(BIN)/python -m pytest -q -x $(QUICK) $(ARGS) && wait $$types

# Tests of a file stay with one process, which has the fits that they share.
test: $(STAMP) ## the default suite and its line coverage (minutes)
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov=integrand $(if $(ARGS),,--cov-fail-under=90) $(ARGS)

test-slow: $(STAMP) ## statistical suites (tens of minutes)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow --timeout=7200 $(ARGS)

# Warnings are shown and not raised: old packages warn of each other.
test-oldest: ## the default suite with the oldest versions that pyproject.toml allows, in .venv-oldest
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python scripts/oldest.py > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	.venv-oldest/bin/python -m pip install --quiet -e '.[all]' --group dev -c .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pytest -n 2 --dist loadfile -o filterwarnings=default $(ARGS)

bench: bench-bound bench-memory bench-fit bench-predict bench-large ## all benchmarks

bench-bound: $(STAMP) ## time of the bound's value and gradient against its floor
	$(BIN)/python -m benchmarks.bound_time $(ARGS)

bench-profile: $(STAMP) ## what a value and gradient of the bound spends its time on, and how many chains fill the cores
	$(BIN)/python -m benchmarks.bound_profile $(ARGS)

bench-memory: $(STAMP) ## memory of the bound's value and gradient at a million rows
	$(BIN)/python -m benchmarks.bound_memory $(ARGS)

bench-fit: $(STAMP) ## whole fits of the paper's data sets in fresh processes
	$(BIN)/python -m benchmarks.fit_time $(ARGS)

bench-large: $(STAMP) ## a complete fit with 100 000 rows under a budget
	$(BIN)/python -m benchmarks.large_fit $(ARGS)

bench-predict: $(STAMP) ## seconds of predict, evaluate and report, alone and beside busy processes; memory for 100 000 rows
	$(BIN)/python -m benchmarks.predict_time $(ARGS)

bench-reweighting: $(STAMP) ## sparse draws re-weighted to the exact posterior, against gpr-hmc (minutes, resumable)
	$(BIN)/python -m benchmarks.reweighting $(ARGS)

bench-methods: $(STAMP) ## every method and sampler on yacht and boston, and how a gradient grows with N and M
	$(BIN)/python -m benchmarks.method_time $(ARGS)

bench-categories: $(STAMP) ## categories and several outputs against one-hot columns and separate models
	$(BIN)/python -m benchmarks.categories $(ARGS)

bench-findings: $(STAMP) ## findings on the model in twelve broken and twelve sound situations, into findings.jsonl
	$(BIN)/python -m benchmarks.findings $(ARGS)

bench-truth: $(STAMP) ## is what is called converged right? Fits beside quadrature (hours; can be interrupted)
	$(BIN)/python -m benchmarks.truth $(ARGS)

bench-likelihoods: $(STAMP) ## classes beside scikit-learn's classifier, and coverage of counts; goes on where it was stopped
	$(BIN)/python -m benchmarks.likelihoods $(ARGS)

bench-warped: $(STAMP) ## transforms of a skewed target beside the plain model, ten paired splits; goes on where it was stopped
	$(BIN)/python -m benchmarks.warped $(ARGS)

bench-scale: $(STAMP) ## time of a gradient against rows and processes; WHAT=fit or disk: millions of rows
	$(BIN)/python -m benchmarks.scale.run $(or $(WHAT),growth) $(ARGS)

bench-update: $(STAMP) ## rows that come in blocks beside fits of all rows, and a stream beside Bui et al.; goes on where it was stopped
	$(BIN)/python -m benchmarks.update $(ARGS)

bench-inducing: $(STAMP) ## Z to convergence beside long ML-II and GPflow's (GPFLOW: a Python that has it); WHAT=auto: M chosen by the fit
	$(BIN)/python -m benchmarks.inducing $(or $(WHAT),convergence) $(if $(GPFLOW),--gpflow $(GPFLOW)) $(ARGS)

bench-peers: $(STAMP) ## side by side with six other packages, hours (QUICK=1: minutes)
	$(BIN)/python -m benchmarks.peers --install $(if $(QUICK),--profile quick) $(ARGS)
	$(BIN)/python -m benchmarks.peers $(if $(QUICK),--profile quick) $(ARGS)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	@touch $@

# Code of the pages runs with the command `integrand` of this environment. Programs and outputs are kept in build/docs.
docs: export PATH := $(CURDIR)/$(BIN):$(PATH)
docs: $(DOCS_STAMP) ## the documentation site, in build/docs/html; prose, code and links are checked
	$(BIN)/python docs/check.py prose
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/docs/html
	$(BIN)/python docs/check.py site build/docs/html

lint: $(STAMP) ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP) ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
