# make demo   sets up and does the main job · make test   sets up and runs every check · make docs   builds the site · make setup
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup packages test check format demo docs pictures clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Joulecast needs Python 3.11 or newer: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,mnn,onnx,monsoon,zeus,prune,search,plan,hf,lightning,postgres,fleet,web,docs,dev]'
	touch $(STAMP)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# What tests need that is no Python package.
packages:
	.ci/packages

test: check packages
	# The tests of a file run in one process, which makes their fixtures once.
	$(BIN)/pytest -n 2 --dist loadfile

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The documentation is in build/site: open build/site/index.html"

# Pictures on the pages, made by the tests of the dashboard and of the tutorial.
pictures: $(STAMP)
	JOULECAST_SCREENSHOTS=$(CURDIR)/build/screenshots $(BIN)/pytest -q tests/web tests/docs/test_printed_commands.py
	$(BIN)/python docs/_site/pictures.py build/screenshots

demo: $(STAMP)
	$(BIN)/python examples/demo.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
