# make demo   train, quantize, compile and verify a small network
# make test   lint, types and all tests, with the stock ExecuTorch runtime
# make bench  the model set, its files in the stock runtime and on the device, and compile times, beside ExecuTorch's
#             (an hour)
#
# Each sets up what it needs on a fresh machine: two virtual environments, since the pins of the stock runtime's
# viewers contradict those of tosa-tools, and Debian's Arm compiler and QEMU. A stamp in each environment makes the next
# call fast.

PYTHON ?= python3
VENV := .venv
INTEROP := .venv-interop
MODELS ?= ../shared/bench/models.py
TARGETS ?= ethos-u55-128,ethos-u85-256
PIP := -m pip --disable-pip-version-check install -qq -c constraints.txt

export ARM_LOWER_INTEROP_PYTHON ?= $(CURDIR)/$(INTEROP)/bin/python

DEBIAN := gcc libc6-dev gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm

.PHONY: help demo test lint types unit setup tools interop peer zoo device bench clean

help:
	@sed -n 's/^# make /make /p' Makefile

demo: $(VENV)/.ready
	$(VENV)/bin/python notebooks/digits.py

test: setup
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory types
	$(MAKE) --no-print-directory unit

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .

types: $(VENV)/.ready
	$(VENV)/bin/mypy

# PYTEST_ARGS: more options, for example PYTEST_ARGS="tests/pte -x".
unit: $(VENV)/.ready $(INTEROP)/.ready tools
	$(VENV)/bin/python -m pytest -n 2 $(PYTEST_ARGS)

# All at once: most of the time goes into unpacking.
setup:
	@$(MAKE) --no-print-directory -j 3 $(VENV)/.ready $(INTEROP)/.ready tools

# Compiler and simulator of the device side; nothing is installed if they are there.
tools:
	@if command -v gcc >/dev/null && command -v arm-none-eabi-gcc >/dev/null && command -v qemu-system-arm >/dev/null \
	  && [ -f "$$(arm-none-eabi-gcc -print-file-name=nano.specs)" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then sudo=none; elif [ "$$(id -u)" = 0 ]; then sudo=; \
	elif command -v sudo >/dev/null; then sudo=sudo; else sudo=none; fi; \
	if [ "$$sudo" != none ] && $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install \
	  -y -qq --no-install-recommends $(DEBIAN); then exit 0; fi; \
	echo "make tools: install these packages of your system, then try again: $(DEBIAN)" >&2; exit 1

interop: $(INTEROP)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 13) else \
	  "Python 3.11 or 3.12 is needed, %s is %s; try make PYTHON=python3.11" % (sys.executable, sys.version.split()[0]))'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) -e '.[test,zoo]'
	$(VENV)/bin/python $(PIP) --no-deps torchvision facenet-pytorch
	@touch $@

$(INTEROP)/.ready: constraints.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python $(PIP) torch executorch pte-adapter-model-explorer tosa-adapter-model-explorer
	@touch $@

# ExecuTorch's own Ethos-U compiler, for the comparison only. Its pin of flatbuffers would take the viewers' away.
peer: $(INTEROP)/.peer

$(INTEROP)/.peer: $(INTEROP)/.ready
	$(INTEROP)/bin/python -m pip --disable-pip-version-check install -qq --no-deps \
	  ethos-u-vela==5.1.0 tosa-tools==2026.5.0 ml-dtypes==0.5.1 jsonschema==4.24.0 semver==3.0.4 \
	  jsonschema-specifications referencing rpds-py torchvision==0.28.0 facenet-pytorch==2.6.0 pillow
	@touch $@

zoo: $(VENV)/.ready
	$(VENV)/bin/python benchmarks/zoo.py --models $(MODELS) --targets $(TARGETS) --json build/zoo.json

# Every model as firmware in QEMU.
device: $(VENV)/.ready $(INTEROP)/.peer tools
	$(VENV)/bin/python benchmarks/device.py --models $(MODELS) --json build/device.json

bench: zoo device $(INTEROP)/.peer
	$(VENV)/bin/python benchmarks/zoo.py --models $(MODELS) --targets ethos-u85-256 --io-layout channels_last \
	  --only mobilenet_v1_025,mobilenet_v2,mobilenet_v3_small,resnet8 --json build/zoo-channels-last.json
	$(VENV)/bin/python benchmarks/interop.py --models $(MODELS) --targets $(TARGETS)
	$(VENV)/bin/python benchmarks/compile_time.py --models $(MODELS)

clean:
	rm -rf $(VENV) $(INTEROP) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
