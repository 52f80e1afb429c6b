# The commands for every day; `make help` lists them. The matrix of Pythons, kernels, sanitizers and
# measurements is in noxfile.py.
#
# `make bench` and `make test` require only make and Python 3.11 or newer. Other missing packages
# are installed with apt-get if that is permitted; otherwise make prints their names. Each virtual
# environment has a stamp file, `installed`; it is built again if a source is newer than the stamp.
# `.ci/wheel` compiles the package, once for all environments. The package is installed, never
# imported from the source tree (PYTHONSAFEPATH).
#
#   PYTHON=python3.12   the interpreter; by default the newest that works
#   ARGS="..."          options for the benchmark or for pytest
#   VENV=DIR            the virtual environment of bench and test (.venv-make), which make creates itself

VENV ?= .venv-make
ARGS ?=
DEV = .venv-dev
DOCS = .venv-docs
VERSIONS = 3.11 3.12 3.13 3.14 3.15
LIBURING_MIN = 2.3
PKG_CONFIG ?= pkg-config

# Prints "MINOR PATH" of a CPython 3.11 or newer. Candidates are run, not only looked up: a pyenv
# shim can exist without its interpreter.
PROBE = import sys; v = sys.version_info; ok = v >= (3, 11) and sys.implementation.name == "cpython"; \
        print(v.minor, sys.executable) if ok else sys.exit(1)

# help and clean need no interpreter.
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
ifndef PYTHON
PYTHON := $(shell for name in python3 $(VERSIONS:%=python%); do $$name -c '$(PROBE)' 2>/dev/null; \
            done | sort -s -k1,1nr | head -n1 | cut -d' ' -f2-)
endif
TAG := $(shell $(or $(PYTHON),false) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
ifeq ($(TAG),)
$(error $(or $(PYTHON),Python 3.11 or newer) cannot be run; install one (Debian, Ubuntu: apt-get \
  install python3 python3-venv python3-dev) or name one: make PYTHON=/path/to/python3)
endif
endif

BUILD_SOURCES := setup.py pyproject.toml $(shell find uringloop -name '*.pyx' -o -name '*.pxd' \
                   -o -name '*.[ch]')
SOURCES := $(BUILD_SOURCES) $(shell find uringloop -name '*.py' -o -name '*.pyi' -o -name py.typed)
LINTED = noxfile.py setup.py .ci/kernels uringloop tests benchmarks examples docs

RUN = PYTHONSAFEPATH=1 $(VENV)/bin/python
# The command that runs the tests. That of .ci/run runs a failed test again, alone.
PYTEST ?= -m pytest
WORKERS = --numprocesses auto --dist worksteal
RUN_DEV = PYTHONSAFEPATH=1 $(DEV)/bin/python

BUILD_REQUIRES = $(shell sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ,)
# Builds share the build folder: one at a time, as in .ci/wheel.
DEBUG_BUILD = mkdir -p build/packages && URINGLOOP_DEBUG=1 flock build/packages/lock
# Installs the package into the environment of a target, with the packages of its EXTRAS.
define INSTALL
@wheel=$$($(@D)/bin/python .ci/wheel) && \
  $(@D)/bin/python -m pip install --quiet --force-reinstall --no-deps "$$wheel" && \
  $(@D)/bin/python -m pip install --quiet "asyncio-uringloop[$(EXTRAS)]"
@touch $@
endef

.NOTPARALLEL:
.PHONY: help bench test dev lint docs release-check clean requirements

help:  ## List the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "  nox -l             List the sessions of the matrix"

bench: $(VENV)/installed  ## Compare event loops on this machine; ARGS="--full" for the whole table
	$(RUN) -m uringloop.bench $(ARGS)

test: $(VENV)/installed  ## Install the package and run the tests on it; ARGS="tests/turn -x"
	$(RUN) $(PYTEST) $(WORKERS) $(ARGS)

$(VENV)/installed: EXTRAS = bench,test
$(VENV)/installed: $(VENV)/python-$(TAG) $(SOURCES)
	@echo "Compiling uringloop and installing it into $(VENV), with the packages for its benchmark and tests: two to four minutes"
	$(INSTALL)

dev: $(DEV)/installed  ## Create .venv-dev: an editable debug build and all tools

lint: $(DEV)/installed  ## Check style and types: ruff, cython-lint, mypy, pyright, and the stubs
	$(RUN_DEV) -m ruff check $(LINTED)
	$(RUN_DEV) -m ruff format --check $(LINTED)
	@# cython-lint runs pycodestyle by name.
	PATH="$(CURDIR)/$(DEV)/bin:$$PATH" cython-lint uringloop
	@# basedpyright is a distribution of pyright with all its dependencies.
	$(DEV)/bin/basedpyright --pythonpath $(DEV)/bin/python
	@mkdir -p build
	@# Both take as long as all others together, on one processor.
	$(RUN_DEV) -m mypy.stubtest uringloop --allowlist stubtest_allowlist.txt \
	  --mypy-config-file pyproject.toml >build/stubtest.log 2>&1 & stubtest=$$!; \
	$(RUN_DEV) -m mypy; mypy=$$?; wait $$stubtest; stubtest=$$?; \
	cat build/stubtest.log; exit $$((mypy + stubtest))

$(DEV)/installed: $(DEV)/tools $(BUILD_SOURCES)
	$(DEBUG_BUILD) $(DEV)/bin/python setup.py -q build_ext --inplace
	@touch $@

# pip would make a new environment for the build, and the newer files of the Cython installed after
# that would cause all modules to be compiled again: so Cython is installed first.
$(DEV)/tools: $(DEV)/python-$(TAG) pyproject.toml
	$(DEV)/bin/python -m pip install --quiet $(BUILD_REQUIRES)
	$(DEBUG_BUILD) $(DEV)/bin/python -m pip install --quiet --no-build-isolation --editable ".[dev]"
	@touch $@

# Docstrings come from the installed package; Sphinx does not notice their changes, hence -E.
docs: $(DOCS)/installed  ## Build the site of docs/ into build/docs; warnings are errors
	PYTHONSAFEPATH=1 $(DOCS)/bin/python -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

$(DOCS)/installed: EXTRAS = docs
$(DOCS)/installed: $(DOCS)/python-$(TAG) $(SOURCES)
	$(INSTALL)

# The environment of `make lint` has nox.
release-check: $(DEV)/installed  ## Check that this commit could be released; print what is left to a person
	@$(MAKE) --no-print-directory requirements PROGRAMS="curl git"
	PATH="$(CURDIR)/$(DEV)/bin:$$PATH" $(DEV)/bin/nox -s release_check

clean:  ## Remove everything that make and nox created
	rm -rf .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find uringloop -name '*.so' -delete
	@# Versions before the first release had Cython write beside its sources.
	grep -ls '^/\* Generated by Cython' uringloop/*/*.c | xargs -r rm
	find . -name __pycache__ -prune -exec rm -rf {} +

# ── requirements of a build ───────────────────────────────────────────────────────────────────

# Replaces an environment of another Python, but only if make created it.
%/python-$(TAG):
	@if [ -e $* ] && [ ! -e $*/made-by-make ] && ! ls $*/python-* >/dev/null 2>&1; then \
	  echo "$* is not an environment of make's, which would remove it: name another VENV" >&2; exit 1; fi
	@$(MAKE) --no-print-directory requirements
	@rm -rf $*
	@mkdir $* && touch $*/made-by-make
	$(PYTHON) -m venv $*
	@touch $@

# Prints the missing Debian packages. A Python that is not Debian's must include its own headers and
# venv.
define MISSING
printf '#include <stdio.h>\nint main(void) { return 0; }\n' \
  | $${CC:-cc} -x c - -o /dev/null 2>/dev/null || echo gcc libc6-dev; \
command -v $(PKG_CONFIG) >/dev/null || echo pkg-config; \
$(PKG_CONFIG) --atleast-version=$(LIBURING_MIN) liburing 2>/dev/null || echo liburing-dev; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || echo $(PYTHON_PACKAGE)-venv; \
[ -e "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
  || echo $(PYTHON_PACKAGE)-dev; \
for program in $(PROGRAMS); do command -v $$program >/dev/null || echo $$program; done
endef
PYTHON_PACKAGE = $(basename python$(TAG))

requirements:
	@missing=$$(echo $$($(MISSING))); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	command="apt-get update && apt-get install -y $$missing"; \
	if ! command -v apt-get >/dev/null; then \
	  echo "To build uringloop, install these packages (names of Debian): $$missing (liburing >= $(LIBURING_MIN))" >&2; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then run="sh -c"; \
	elif sudo -n true 2>/dev/null; then run="sudo -n sh -c"; \
	else echo "To build uringloop, run: sudo sh -c '$$command'" >&2; exit 1; fi; \
	echo "$$command"; $$run "export DEBIAN_FRONTEND=noninteractive; $$command" || exit 1; \
	missing=$$(echo $$($(MISSING))); \
	if [ -n "$$missing" ]; then \
	  echo "Still missing or too old: $$missing. liburing >= $(LIBURING_MIN) can be built from" \
	    "https://github.com/axboe/liburing: ./configure && make install" >&2; exit 1; fi
