.PHONY: demo test test-slow zoo-quick lint fmt clean

python := .venv/bin/python
pip := $(python) -m pip install --quiet --disable-pip-version-check

demo: .venv/demo.stamp
	.venv/bin/jspec demo

.venv/bin/python:
	@found=$$(scripts/find_python.sh) && echo "Making .venv with $$found." \
	    && "$$found" -m venv --clear .venv

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing jspec into .venv (about a minute the first time)."
	$(pip) --editable '.[demo]'
	@touch $@

.venv/test.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing jspec and its test tools into .venv (a few minutes the first time: torch is large)."
	$(pip) --editable '.[test]'
	@touch .venv/demo.stamp $@

test: lint
	$(python) -m pytest

test-slow: .venv/test.stamp
	@echo "Installing the compiler for GPUs, if it is missing (200 MB)."
	$(python) -m benchmarks.gpu.aot
	$(python) -m pytest -m "slow and not gpu and not peers" || test $$? -eq 5

zoo-quick: .venv/test.stamp
	@echo "Measuring a text of each kind with every method (under ten minutes)."
	rm -rf build/zoo-quick
	.venv/bin/jspec bench zoo --quick --minutes 9 -o build/zoo-quick \
	    --against benchmarks/results/zoo.json

lint: .venv/test.stamp
	.venv/bin/ruff check --quiet
	.venv/bin/ruff format --check --quiet
	.venv/bin/lint-imports --no-logo
	.venv/bin/pyrefly check --output-format=min-text

fmt: .venv/test.stamp
	.venv/bin/ruff check --quiet --fix
	.venv/bin/ruff format

clean:
	rm -rf .venv .hypothesis .import_linter_cache .pytest_cache .ruff_cache
