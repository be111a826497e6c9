PYTHON ?= python3
VENV := .venv
BARE := .venv-notorch
FUZZ := .venv-fuzz
SITE := .venv-site
PIP := -m pip --disable-pip-version-check install --quiet
BIN := $(VENV)/bin

# Test files are shared out among processes (tests/conftest.py says how): one for each core, up to four. A test that
# hangs fails, and its process goes on: pytest-xdist waits for ever for one that ended.
WORKERS := --numprocesses=auto --maxprocesses=4 --dist=loadscope --timeout=900 --timeout-method=signal

# A stamp is newer than the files that say what goes into its environment, or the environment is brought up to date.
STAMP := $(VENV)/.stamp
BARE_STAMP := $(BARE)/.stamp
FUZZ_STAMP := $(FUZZ)/.stamp
SITE_STAMP := $(SITE)/.stamp
RECIPE := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help env env-notorch lint types bytecode test coverage test-libraries test-page test-stores test-models test-mappings test-frameworks test-wheel test-site site man pictures fuzz faults demo fixtures bench bench-quick bench-peers golden golden-accept emitted clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(STAMP) ## Build .venv: the package with torch, test and lint tools
$(STAMP): $(RECIPE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --upgrade 'pip>=25.1'
	$(BIN)/python $(PIP) -c constraints.txt -e '.[train]' --group test --group lint
	@touch $@

env-notorch: $(BARE_STAMP) ## Build .venv-notorch: base dependencies and test tools, no torch
$(BARE_STAMP): $(RECIPE)
	$(PYTHON) -m venv $(BARE)
	$(BARE)/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(BARE)/bin/python $(PIP) -c constraints.txt -e . --group test
	@touch $@

lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP) ## Check types
	$(BIN)/mypy

# The suite starts thousands of programs. Each would compile the package anew where no bytecode may be written.
unexport PYTHONDONTWRITEBYTECODE

# What pytest imports is compiled first, so that no two processes do it. In a new clone that takes the test files, too,
# in which pytest rewrites the asserts: ten seconds of every process, which pass here while mypy looks at the package.
REWRITTEN := $(VENV)/.rewritten

bytecode: $(STAMP) $(REWRITTEN)
	@$(BIN)/python -m compileall -q -j 2 ckptool tests benchmarks fixtures

$(REWRITTEN): $(STAMP)
	@if $(BIN)/pytest --collect-only -q >/dev/null 2>&1; then touch $@; fi

# Nothing is watched line by line here: that takes more than twice as long, and is a target of its own.
# The second run has no torch to import: what must work without it is shown to, with fewer examples of each law and at
# most three parametrizations of each test.
test: $(STAMP) $(BARE_STAMP) ## Run every check: lint, types, the suite, the suite without torch
	@$(MAKE) --no-print-directory --jobs=2 types lint bytecode
	$(BIN)/pytest $(WORKERS)
	HYPOTHESIS_PROFILE=brief $(BARE)/bin/pytest $(WORKERS)

coverage: $(STAMP) bytecode ## Run the suite watched line by line, list what no test runs, and ask for 90 percent
	$(BIN)/pytest $(WORKERS) --cov

# Each in an environment of its own: nothing here is needed to use or to develop the package.
test-libraries: test-page test-site test-wheel test-stores test-models test-mappings test-frameworks ## Test with what is not torch or safetensors: Chromium, the site, the wheel, object stores, model libraries

# The wheel is made out of the sdist, once; what tries them uses a Python of each version that the machine has.
WHEEL := build/wheel

test-wheel: $(STAMP) ## Build the wheel and the sdist, and try them in empty environments: each Python, pipx, uvx, pre-commit, pyright
	rm -rf $(WHEEL) && $(PYTHON) -m venv $(WHEEL)/tools
	$(WHEEL)/tools/bin/python $(PIP) --upgrade 'pip>=25.1' build twine pipx uv pre-commit pyright mypy
	$(WHEEL)/tools/bin/python -m build --outdir $(WHEEL)/built . >$(WHEEL)/log || { cat $(WHEEL)/log; exit 1; }
	CKPTOOL_BUILT=$(WHEEL)/built CKPTOOL_TOOLS=$(WHEEL)/tools/bin $(BIN)/pytest -q -rs tests/test_wheel.py

# pip cannot put moto beside s3fs, and azurite is of npm: without node, its tests are left out, and say so.
STORES := build/stores
STORES_STAMP := $(STORES)/.stamp

test-stores: $(STORES_STAMP) ## Test object stores against moto (S3), azurite and an emulator of Google's
	$(STORES)/clients/bin/pytest -q -rs $(addprefix tests/disk/test_,s3.py azure.py google.py stores.py hub.py)

$(STORES_STAMP): $(RECIPE)
	rm -rf $(STORES) && $(PYTHON) -m venv $(STORES)/clients && $(PYTHON) -m venv $(STORES)/moto && $(PYTHON) -m venv $(STORES)/google
	$(STORES)/clients/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(STORES)/clients/bin/python $(PIP) -e '.[remote]' --group test --group stores
	$(STORES)/moto/bin/python $(PIP) 'moto[server]>=5'
	$(STORES)/google/bin/python $(PIP) 'gcp-storage-emulator>=2024.8'
	-command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix $(STORES)/azurite 'azurite@>=3.30'
	@touch $@

MODELS := build/models
MODELS_STAMP := $(MODELS)/.installed

test-models: $(MODELS_STAMP) ## Test that transformers and peft load the folders that ckptool writes
	$(MODELS)/bin/python -m pytest -q -rs tests/passes/test_in_transformers.py

$(MODELS_STAMP): $(RECIPE)
	rm -rf $(MODELS) && $(PYTHON) -m venv $(MODELS)
	$(MODELS)/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(MODELS)/bin/python $(PIP) -c constraints.txt -e '.[torch]' --group test
	$(MODELS)/bin/python $(PIP) 'transformers>=5' 'peft>=0.21' accelerate
	@touch $@

# What these libraries require of torch, and torchvision's compiled part, would replace the torch that is there.
MAPPINGS := build/mappings
MAPPINGS_STAMP := $(MAPPINGS)/.stamp

test-mappings: $(MAPPINGS_STAMP) ## Test the mappings that ship against transformers, diffusers, timm and torchvision
	$(MAPPINGS)/bin/pytest -q -rs tests/porting/test_shipped_with_libraries.py

$(MAPPINGS_STAMP): $(RECIPE)
	rm -rf $(MAPPINGS) && $(PYTHON) -m venv $(MAPPINGS)
	$(MAPPINGS)/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(MAPPINGS)/bin/python $(PIP) -c constraints.txt -e '.[torch]' --group test
	$(MAPPINGS)/bin/python $(PIP) --no-deps 'transformers==5.23.0' 'diffusers==0.42.1' 'timm==1.0.31' 'torchvision==0.28.0'
	$(MAPPINGS)/bin/python $(PIP) huggingface_hub tokenizers regex requests pillow importlib_metadata tqdm
	@touch $@

# What depends on torch comes without its dependencies, which would replace the torch that is there.
FRAMEWORKS := build/frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.stamp

test-frameworks: $(FRAMEWORKS_STAMP) ## Test the pieces of docs/in-your-code.md with Lightning, transformers and timm
	CKPTOOL_REQUIRE_FRAMEWORKS=1 $(FRAMEWORKS)/bin/pytest -q -rs tests/needs/test_in_your_code.py

$(FRAMEWORKS_STAMP): $(RECIPE)
	rm -rf $(FRAMEWORKS) && $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(FRAMEWORKS)/bin/python $(PIP) -c constraints.txt -e '.[train]' --group test
	$(FRAMEWORKS)/bin/python $(PIP) --no-deps lightning lightning-utilities torchmetrics transformers accelerate timm torchvision
	$(FRAMEWORKS)/bin/python $(PIP) tokenizers regex psutil requests pillow
	@touch $@

# The environment of `make test` is none with a browser: what it checks must not depend on what was run before.
PAGE := build/page
PAGE_STAMP := $(PAGE)/.stamp

test-page: $(PAGE_STAMP) ## Test the pages of HTML in a headless Chromium, which must be installed (Debian: chromium)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
		echo "installing chromium"; apt-get install -y --no-install-recommends chromium; }
	CKPTOOL_REQUIRE_BROWSER=1 $(PAGE)/bin/pytest -q tests/drawing

$(PAGE_STAMP): $(RECIPE)
	rm -rf $(PAGE) && $(PYTHON) -m venv $(PAGE)
	$(PAGE)/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(PAGE)/bin/python $(PIP) -c constraints.txt -e '.[torch]' --group test --group page
	@touch $@

# NO_MKDOCS_2_WARNING: mkdocs-material advertises its successor at each build.
site: $(SITE_STAMP) ## Build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs --quiet build --strict --clean

test-site: site ## Build the site, and check that links lead somewhere and that nothing is fetched
	$(SITE)/bin/python -m manual.check build/site

man: $(STAMP) ## Make manual/ckptool.1 anew
	$(BIN)/python -m manual.man > manual/ckptool.1.new && mv manual/ckptool.1.new manual/ckptool.1

pictures: $(STAMP) ## Make the pictures in docs/pictures, and the drawings in docs/formats.md, anew
	$(BIN)/python -m manual.pictures
	$(BIN)/python -m manual.layouts

$(SITE_STAMP): $(RECIPE)
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(SITE)/bin/python $(PIP) -c constraints.txt -e . --group site
	@touch $@

# How much is asked: mutants of each family of formats, and seconds of each target that coverage guides.
FUZZ_MUTANTS ?= 2000
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 1

fuzz: $(STAMP) $(FUZZ_STAMP) ## Ask of mutants of every format (FUZZ_MUTANTS=, FUZZ_SEED=), then let coverage guide (FUZZ_SECONDS=)
	$(BIN)/python -m tests.fuzz --seed $(FUZZ_SEED) run all --mutants $(FUZZ_MUTANTS)
	$(BIN)/python -m tests.fuzz.differential --seed $(FUZZ_SEED) --mutants $(FUZZ_MUTANTS)
	@if $(FUZZ)/bin/python -c 'import atheris' 2>/dev/null; then for target in pickle zip safetensors; do \
		$(FUZZ)/bin/python -m tests.fuzz.guided $$target --seconds $(FUZZ_SECONDS) || exit 1; \
	done; else echo "atheris cannot be installed here (it wants CPython 3.11 to 3.13 on Linux): mutants only"; fi

$(FUZZ_STAMP): $(RECIPE)
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python $(PIP) --upgrade 'pip>=25.1'
	$(FUZZ)/bin/python $(PIP) -c constraints.txt -e .
	-$(FUZZ)/bin/python $(PIP) -c constraints.txt --group fuzz
	@touch $@

demo: $(STAMP) ## Run the demonstration
	$(BIN)/python -m fixtures.demo

fixtures: $(STAMP) ## Make the checkpoints in fixtures/trained anew, with ckptool's own training pipeline
	$(BIN)/python -m fixtures.build

faults: $(STAMP) ## Interrupt every command that writes at random moments (MOMENTS=50 of each signal, SEED=1)
	PYTHONPATH=tests $(BIN)/python tests/faulty.py

bench: $(STAMP) ## Measure ckptool beside cp, torch, safetensors and others, in under an hour, and write docs/performance.md
	$(BIN)/python -m benchmarks.table --write

bench-quick: $(STAMP) ## The same with 64 MB for 1 GB, in 3 minutes, printed only
	$(BIN)/python -m benchmarks.table --quick

# Programs of others need versions of packages that cannot stand beside each other, so what they ask for is not looked at.
PEERS := build/peers
bench-peers: $(STAMP) ## Install the programs of others that `make bench` compares, in an environment of their own
	rm -rf $(PEERS) && $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) -c constraints.txt torch safetensors numpy ml_dtypes requests tqdm click 'rich<15' typer
	$(PEERS)/bin/python $(PIP) defusedxml 'tomlkit<0.14' fickling picklescan modelscan
	-for one in sft-cli checkpoint-tools ckptkit hayward; do $(PEERS)/bin/python $(PIP) --no-deps $$one; done

# A folder of porting pairs, which is no part of the repository: beside it, or nowhere.
PAIRS := $(wildcard ../shared/porting)

golden: $(STAMP) ## Show how the ports of the zoo (and of PAIRS=DIR) differ from those that are stored
	$(BIN)/python -m benchmarks.golden $(PAIRS)

golden-accept: $(STAMP) ## Store the ports of the zoo (and of PAIRS=DIR)
	$(BIN)/python -m benchmarks.golden --accept $(PAIRS)

emitted: $(STAMP) ## Compare the code of every port of the zoo (and of PAIRS=DIR) with what the mapping makes
	$(BIN)/python -m benchmarks.emitted $(PAIRS)

clean: ## Remove the environments and everything generated
	rm -rf $(VENV) $(BARE) $(FUZZ) $(SITE) build dist demo-out benchmarks/out htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	rm -f .coverage .coverage.* coverage.xml
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
