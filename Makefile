# Needs Python 3.11 or newer (3.11 is what the pinned versions are tested with) and make; nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := build/demo
FEDERATION := build/federation

# Flower neither reports usage nor looks for updates.
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo federation test lint bench trust drills clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# torch goes first and pinned, so that nothing else chooses its build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "FedMVC needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing into $(VENV): some minutes, about 2 GB.'
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@

demo: $(STAMP)  ## two hospitals cluster 10,000 patients; results in build/demo/run
	rm -rf $(DEMO)
	mkdir -p $(DEMO)
	$(BIN)/fedmvc-server synthesize cardio --out $(DEMO)/sites
	$(BIN)/fedmvc-server simulate configs/presets/paper.toml --data $(DEMO)/sites --out $(DEMO)/run \
		--truth $(DEMO)/sites/truth.csv
	@echo "Server's results: $(DEMO)/run (result.json, model.json, model.npz, rounds.csv)"
	@echo "Each site's own results: $(DEMO)/sites/SITE/results"

federation: $(STAMP)  ## server and three hospitals on this machine, over TLS; results in build/federation
	rm -rf $(FEDERATION)
	$(BIN)/fedmvc-server rehearse configs/presets/paper.toml --out $(FEDERATION) --fast

# Two processes share the cores here: threads of both, waiting for each other, would cost most.
test: export OMP_NUM_THREADS := 1
test: lint  ## linters, types and the tests, but for the long ones of make drills
	@mkdir -p build
	@echo 'Tests over real Flower processes run beside the others; their output follows at the end.'
	@$(BIN)/python -m pytest tests/network -m "not drill or short" > build/network-tests.log 2>&1 & network=$$!; \
	trap 'kill -INT $$network' INT TERM; \
	$(BIN)/python -m pytest -m "not drill or short" --ignore=tests/network; others=$$?; \
	wait $$network; network=$$?; cat build/network-tests.log; exit $$((others | network))

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## print the benchmarks' figures (long: hours on two cores)
	@for name in paper_fedhk exchanges communication solver deployed_round tensor_fmvc tensor_scale \
		mufsht mufsht_ablations mufsht_scale secure_sum privacy_utility \
		label_privacy; do \
		echo "== benchmarks.$$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

drills: export OMP_NUM_THREADS := 1
drills: $(STAMP)  ## bad days with real services, and one table of what was seen (half an hour; needs root and nginx)
	$(BIN)/python -m pytest -m drill --every-drill -v

trust: $(STAMP)  ## measure every figure of trust at full size, into docs/trust.md (half an hour)
	$(BIN)/python -m benchmarks.trust

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
