# Two commands matter to a newcomer: `make demo` and `make test`. Each sets up all it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
DEMO_UPDATES ?= 110
DEMO_SCALE ?= 75
DEMO_OUT ?= demo-runs
RUNS ?= 10
JOBS ?= 2

.PHONY: help demo test test-frameworks check bench scoreboard cluster cluster-stop spank stub clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -e 's/:[^#]*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml
	@sh .ci/venv "$(PYTHON)" "$(VENV)"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@

demo: $(VENV)/.installed ## an RL run on simulated GPUs, about a minute and a half, ending with the report
	@mkdir -p $(DEMO_OUT)
	$(BIN)/eerl-run --simulate h100:2x8 --time-scale $(DEMO_SCALE) --policy slurm_examples/policy.yaml \
	  --out $(DEMO_OUT) -- $(BIN)/python slurm_examples/simulated_grpo.py --updates $(DEMO_UPDATES)
	@latest=$$(ls -td $(DEMO_OUT)/eerl-* | head -1); cat "$$latest/report.txt"; echo; echo "Open $$latest/report.html"

test: check ## everything: static checks, all tests, a real Slurm cluster when root
	$(BIN)/pytest -n 2 --dist loadgroup $(PYTEST_ARGS)

test-frameworks: $(VENV)/.installed-test ## the adapters against older versions of their frameworks, from PyPI
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -m frameworks tests/adapters $(PYTEST_ARGS)

packages:
	@sh .ci/packages

check: packages $(VENV)/.installed-test spank stub ## ruff, mypy, C warnings and cppcheck, shellcheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) -s -C spank check
	shellcheck .ci/run .ci/venv .ci/packages $$(git ls-files '*.sh' '*.sbatch')

bench: packages $(VENV)/.installed-test spank stub ## speed and memory, as ratios within one run
	$(BIN)/python tests/bench/run.py

scoreboard: $(VENV)/.installed ## policies side by side on simulated runs, into the docs; RUNS=75 for a full one
	OMP_NUM_THREADS=1 $(BIN)/python -m eerl_twin.scoreboard --runs $(RUNS) --jobs $(JOBS) --inflight-updates 500 \
	  --json .build/scoreboard.json --page controller/eerl_twin/scoreboard.md --readme README.md

spank: packages
	$(MAKE) -s -C spank

stub:
	$(MAKE) -s -C tests/nvml_stub

cluster: packages $(VENV)/.installed-test spank stub ## a Slurm cluster with simulated GPUs on this machine (root)
	$(BIN)/python tests/rig/cluster.py start --nodes 2 --gpus 8

cluster-stop: ## stop that cluster
	$(BIN)/python tests/rig/cluster.py stop

clean: ## remove what was built
	rm -rf .build $(VENV) .venvs build
	$(MAKE) -s -C spank clean
