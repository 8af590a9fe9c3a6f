# Set-up, demo, tests and checks. Everything works on a fresh clone with Python >= 3.11, pip and make.
PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=

BIN := .venv/bin
SGLANG_PIP := .venv-sglang/bin/python -m pip --disable-pip-version-check install -qq $(PIP_ARGS)
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq $(PIP_ARGS)
# One thread a process: a run has several processes, and exact mode needs it.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0

.PHONY: help venv dev demo test test-sglang mutants check format docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Relax needs Python >= 3.11; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv .venv

# torch comes first so that nothing else chooses its version; torchvision last, without dependencies.
.venv/.installed: requirements/cpu.txt requirements/torchvision.txt pyproject.toml | .venv/bin/python
	@echo "installing the pinned requirements into .venv (about a minute the first time)"
	@$(PIP) $$(grep -E '^(torch|numpy)==' requirements/cpu.txt)
	@$(PIP) -r requirements/cpu.txt
	@$(PIP) --no-deps -r requirements/torchvision.txt
	@$(PIP) --no-deps --no-build-isolation -e . 2>/dev/null || $(PIP) --no-deps -e .
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' | xargs -I{} \
	  sh -c "echo 'import relax.utils.torchvision_shim as shim; shim.install_hook()' > {}/zz_relax_torchvision.pth"
	@touch $@

.venv/.installed-dev: requirements/dev.txt .venv/.installed
	@$(PIP) -r requirements/dev.txt
	@touch $@

# Each pip call goes on where an interrupted one stopped.
.venv-sglang/.installed: requirements/sglang-cpu.txt
	@test -x .venv-sglang/bin/python || $(PYTHON) -m venv .venv-sglang
	@echo "building .venv-sglang with SGLang on a CPU (2.9 GB; ten minutes the first time)"
	@$(SGLANG_PIP) $$(grep -E '^(torch|numpy)==' requirements/sglang-cpu.txt)
	@$(SGLANG_PIP) --no-deps -r requirements/sglang-cpu.txt
	@touch $@

venv: .venv/.installed ## create .venv with the pinned requirements
dev: .venv/.installed-dev ## the same with the tools of `make check`

demo: venv ## train a tiny omni model on real handwritten digits; ARGS="--modality audio --colocate --seed 1"
	@$(ONE_THREAD) $(BIN)/python -m examples.quickstart.demo $(ARGS)

test: venv ## all tests that this machine can run; the others are skipped with a reason
	@$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --no-loadscope-reorder $(ARGS)

test-sglang: venv .venv-sglang/.installed ## the engine tests and five training steps with the real SGLang on this CPU
	@$(ONE_THREAD) $(BIN)/python -m benchmarks.sglang_cpu $(ARGS)

mutants: dev ## plant faults in the algorithm files; every one must fail a test (some minutes). ARGS="--only gspo,reduce"
	@$(ONE_THREAD) nice -n 10 $(BIN)/python -m benchmarks.mutants $(ARGS)

check: dev ## format, lint, types, unit tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(ONE_THREAD) $(BIN)/python -m pytest tests/unit $(ARGS)

format: dev ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: venv ## regenerate the reference pages
	@$(BIN)/python scripts/tools/make_docs.py

clean: ## remove run folders and caches, keep .venv
	@rm -rf runs .demo .bench build dist .pytest_cache .ruff_cache .hypothesis
