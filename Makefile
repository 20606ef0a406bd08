# Each target sets up what it needs: a .venv with the package, and CUDA's compiler from PyPI where no nvcc is found.
SHELL := /bin/sh
.DELETE_ON_ERROR:

PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Where an nvcc is at hand only the disassembler comes from PyPI; else the whole compiler.
HAVE_NVCC := $(shell { [ -n "$$FAPERF_NVCC" ] || [ -x "$$CUDA_HOME/bin/nvcc" ] || command -v nvcc; } >/dev/null 2>&1 && echo yes)
TOOLS := $(if $(HAVE_NVCC),disassembler,toolchain)

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(TOOLS)

.PHONY: run test test-external check bench report gpu-test readme setup clean

run: $(READY)
	$(BIN)/faperf run

# A module's tests on one worker, which then makes once what they share.
test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadscope --benchmark-disable tests

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/faperf check

bench: $(READY)
	$(BIN)/python -m pytest benchmarks

report: $(READY)
	$(BIN)/faperf report

# Programs of NVIDIA's CUTLASS on the emulator: the first time each is compiled, a minute or more of one core.
test-external: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[external]'
	FAPERF_EXTERNAL_TESTS=1 $(BIN)/python -m pytest -rs tests/test_external.py

gpu-test: $(READY)
	$(BIN)/python -m pytest tests/gpu -m gpu -rs

readme: $(READY)
	$(BIN)/python -m docs.readme_ladder

setup: $(READY)

$(READY): pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or newer on PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,$(TOOLS)]'
	@touch $@

clean:
	rm -rf $(VENV) .faperf
