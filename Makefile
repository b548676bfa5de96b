# Everything here needs Python 3.11 or newer and make; the rest is installed into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
NAME ?= ground
SECONDS ?= 60
MINUTES ?= 30
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder
# Tests that failed run once more, alone: the run fails if one fails again, and the output names those that passed.
RETRY := echo "running the failed tests once more"; $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -rA
# Our servers are on loopback: a proxy from the environment must not come between.
comma := ,
export NO_PROXY := $(if $(NO_PROXY),$(NO_PROXY)$(comma))127.0.0.1,localhost
# The build of torch that suits the machine: from the wheels that were laid out for it, else as uv finds out.
TORCH := torch==2.13.0
ifneq ($(PIP_FIND_LINKS),)
# uv does not read pip's variable for extra wheel folders.
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
else
export UV_TORCH_BACKEND := auto
endif

# $(call install,EXTRAS,MORE): with uv where it can be had, else with pip.
define install
	if $(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install -q uv; then \
		$(BIN)/python -m uv pip install -q --python $(BIN)/python -c constraints.txt -e '.$(1)' $(2); \
	else \
		echo "uv cannot be installed here: using pip (slower)"; \
		$(BIN)/python -m pip install -q -c constraints.txt -e '.$(1)' $(2); \
	fi
endef

.PHONY: help demo up test test-full check soak fuzz sbom wheel bench components pins clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.train ## install what training needs, too, and tell the story from start to end
	@$(BIN)/falaj demo

up: $(VENV)/.train ## install what training and serving need, too, and start the whole platform on this machine
	@$(BIN)/falaj up

test: components ## everything but the slow tests, against real servers
	$(PYTEST) -m "not slow" || { $(RETRY) -m "not slow"; }

test-full: components ## every test; builds a Kubernetes control plane once
	@$(BIN)/python -m tests.servers.kubernetes_build
	$(PYTEST)

check: $(VENV)/.dev ## lint, types, import contracts, shape, security
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/shape
	$(BIN)/bandit -q -r src -c pyproject.toml 2> >(grep -v WARNING >&2)
	$(BIN)/python -m tests.security.rules
	$(BIN)/python -m tests.security.threat_model
	$(BIN)/python -m tests.security.leaks
	$(BIN)/python -m tests.security.supply check

soak: components ## load, kills, full disks, wrong clocks, cut links, and a verdict: make soak MINUTES=30
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

fuzz: $(VENV)/.dev ## strangers' bytes for every reader: make fuzz SECONDS=60
	$(BIN)/python -m tests.fuzz $(SECONDS)

sbom: $(VENV)/.dev ## what the build is made of, as CycloneDX, in dist/
	@mkdir -p dist
	$(BIN)/python -m tests.security.supply sbom > dist/falaj.cdx.json

wheel: $(VENV)/.dev ## a wheel with SBOM and provenance in dist/; signed with the key that FALAJ_SIGNING_KEY names
	$(BIN)/python -m tests.security.release build
	$(if $(FALAJ_SIGNING_KEY),$(BIN)/python -m tests.security.release sign,@echo "not signed: FALAJ_SIGNING_KEY names no key")

bench: $(VENV)/.dev ## one benchmark: make bench NAME=ground
	@test -f bench/$(NAME).py || { echo "no bench/$(NAME).py; there are: $$(cd bench 2>/dev/null && ls *.py 2>/dev/null | sed 's/\.py$$//' | tr '\n' ' ')" >&2; exit 2; }
	$(BIN)/python bench/$(NAME).py

components: $(VENV)/.dev ## install the real servers that the tests start
	@$(BIN)/python -m tests.servers.install

pins: $(VENV)/.dev ## resolve constraints.txt anew
	@$(BIN)/python -m uv pip compile pyproject.toml -q --all-extras --universal --python-version 3.11 --upgrade \
		--no-header --no-annotate --no-emit-find-links -o $(VENV)/pins.txt
	@{ echo "# Every version the extras and the tests resolve to; made by \`make pins\`."; \
	   echo "# torch and what only torch brings are left out: each machine takes the build made for it."; \
	   grep -vE '^ |^(torch|triton|setuptools|sympy|mpmath|networkx|falaj)==|^(nvidia-[^m]|cuda-)|^-' $(VENV)/pins.txt; } > constraints.txt

clean: ## remove what make and the tools made
	rm -rf $(VENV) .components build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
		if command -v $$python >/dev/null && $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
			exec $$python -m venv $(VENV); \
		fi; \
	done; \
	echo "Falaj needs Python 3.11 or newer; none was found on PATH (make PYTHON=/path/to/python names one)" >&2; exit 1

# The stamps keep a second make from installing again.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Falaj into $(VENV)"
	@$(call install)
	@touch $@

$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Falaj and torch into $(VENV)"
	@$(call install,[features$(comma)optimize$(comma)serve$(comma)train],$(TORCH))
	@touch $(VENV)/.core $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Falaj and its test tools into $(VENV)"
	@$(call install,[dev])
	@touch $(VENV)/.core $(VENV)/.train $@
