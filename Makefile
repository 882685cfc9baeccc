# Forebay: everything a person or CI runs. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

CARGO ?= cargo
# What incremental builds keep is as large again, and a fresh clone has no use for it.
export CARGO_INCREMENTAL ?= 0
PREFIX ?= /usr/local
DESTDIR ?=
# Where `mount -t fuse.forebay` looks for its helper. It is not below PREFIX on any system.
SBINDIR ?= /sbin
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
FOREBAY := $(TARGET_DIR)/release/forebay
TORCH_VENV := $(TARGET_DIR)/torch-venv
TRACE_VENV := $(TARGET_DIR)/trace-venv
# cargo-deny is not packaged by Debian; `make deny` builds it once into this directory.
TOOLS := $(TARGET_DIR)/tools
CARGO_DENY_VERSION := 0.20.2
CARGO_FUZZ_VERSION := 0.13.1
MDBOOK_VERSION := 0.5.4
# How long `make fuzz` runs each target.
FUZZ_SECONDS ?= 60
# Tests that run at once, beside those that tests/tiers.conf says to wait most of the time.
TEST_JOBS ?= 6
# More for tests/runner: parts of names of tests (TEST_ARGS=served_cache::), --verbose, --repeat N.
TEST_ARGS ?=
# How long the random test of the cache runs in `make test`, `make test-full`, and `make model`.
TEST_MODEL_SECONDS := 15
FULL_MODEL_SECONDS := 60
# Seeds of the simulation of operations over servers in bad weather in `make test-full`; in `make test` it has 200.
FULL_WEATHER_SEEDS := 10000
MODEL_SECONDS ?= 3600
BENCH_ARGS ?=
# For demo/run: DEMO_ARGS=--slurm submits the job to a Slurm of its own.
DEMO_ARGS ?=

INSTALL_PACKAGES := scripts/install-packages

.PHONY: help build docs check test test-full load test-slurm torch trace-readers model demo bench install uninstall lint lint-quick fmt clippy deny fuzz clean \
	packages-build packages-docs packages-test packages-demo packages-bench

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' Makefile

packages-build:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt

packages-docs:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt docs/apt-packages.txt

packages-test:
	@scripts/timed packages $(INSTALL_PACKAGES) scripts/apt-packages-build.txt scripts/apt-packages-run.txt tests/apt-packages.txt

packages-demo:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt scripts/apt-packages-run.txt demo/apt-packages.txt

packages-bench:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt scripts/apt-packages-run.txt bench/apt-packages.txt

build: packages-build ## Build the executable and the library: target/release/forebay, libforebay.so
	$(CARGO) build --release --locked -p forebay -p libforebay -p forebay-preload-trace -p forebay-preload
	@echo "built $(FOREBAY)"

# mdBook is not packaged by Debian; it is built once below target/, which takes some minutes.
docs: packages-docs ## Build the documents as a book: target/docs/book/index.html
	$(CARGO) build --locked -p forebay
	scripts/docs --version $(MDBOOK_VERSION) "$(TARGET_DIR)/debug/forebay" "$(TOOLS)" "$(TARGET_DIR)/docs"

# How the tests are chosen and run: tests/runner, tests/tiers.conf, CONTRIBUTING.md. All are built with one
# profile, and so is the executable that the system tests of `make test` run.
CLIPPY = $(CARGO) clippy --workspace --all-targets --locked -- -D warnings
TEST_RUNNER = $(CARGO) run --quiet --locked -p forebay-test-runner -- --jobs $(TEST_JOBS)
# clippy looks at each crate of ours as it is compiled, which spares a pass over all of them: cargo lets clippy-driver compile them.
LINTED = env RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# All that a run of tests needs, in one build: cargo chooses the features of other crates by what it is asked for, so a command for one
# crate compiles some of them once more.
BUILD_TESTS = $(LINTED) $(CARGO) build --workspace --lib --tests --examples --bin test-runner --locked
BUILT_RUNNER = $(LINTED) "$(TARGET_DIR)/debug/test-runner" --jobs $(TEST_JOBS)

check: packages-docs lint-quick ## Format, lints, and the unit tests that need no root: before each commit
	$(TEST_RUNNER) --tier check

test: packages-test fmt ## Format, lints, and each promise of docs/SEMANTICS.md at least once: before a change is sent
	scripts/check-semantics
	scripts/check-links
	scripts/deny --if-installed "$(TOOLS)"
	scripts/timed build $(BUILD_TESTS)
	FOREBAY_CACHE_MODEL_S=$(TEST_MODEL_SECONDS) $(BUILT_RUNNER) --tier test $(TEST_ARGS)

# Compute nodes of a job are always busy. What fails here and not in `make test` waits too short, or is a race. All is built before.
load: packages-test ## The tests of make test beside busy loops, as many as processors (TEST_ARGS): after a change of a protocol
	$(BUILD_TESTS)
	FOREBAY_CACHE_MODEL_S=$(TEST_MODEL_SECONDS) scripts/under-load $(BUILT_RUNNER) --tier test $(TEST_ARGS)

# What is tested here is what is installed: the release executable.
test-full: packages-test packages-demo build torch trace-readers lint-quick ## All tests, on all kinds of store, by the release executable: before a release
	scripts/deny --if-installed "$(TOOLS)"
	FOREBAY_CACHE_MODEL_S=$(FULL_MODEL_SECONDS) FOREBAY_TEST_WEATHER_SEEDS=$(FULL_WEATHER_SEEDS) FOREBAY_TEST_EVERY_POINT=1 \
	  FOREBAY_BIN="$(FOREBAY)" FOREBAY_TORCH_PYTHON="$(TORCH_VENV)/bin/python" \
	  FOREBAY_TRACE_PYTHON="$(TRACE_VENV)/bin/python" $(TEST_RUNNER) --tier full $(TEST_ARGS)
	# The lease code under random schedules of all its steps: some seconds, the same number each time.
	$(CARGO) test -p forebay-lease --features shuttle --lib --locked schedules

lint-quick: fmt clippy
	scripts/check-semantics
	scripts/check-links

# Real torch for the checkpoint writer's tests: 540 MB are fetched once, 1.5 GB are kept below target/.
torch: packages-test
	scripts/torch-venv "$(TORCH_VENV)"

# PyDarshan, pandas, FTIO and Perfetto's trace processor for the tests of exported traces: 900 MB once, kept below target/.
trace-readers: packages-test
	scripts/trace-venv "$(TRACE_VENV)"

test-slurm: packages-test packages-demo ## The tests of jobs under Slurm alone, also those that make test leaves to make test-full
	$(TEST_RUNNER) --tier full system::slurm $(TEST_ARGS)

model: packages-build ## Run the random test of the cache for MODEL_SECONDS (FOREBAY_SEED replays a run)
	FOREBAY_CACHE_MODEL_S=$(MODEL_SECONDS) $(CARGO) test -p forebay-cache --lib --locked \
		-- --exact tests::model::cache_is_what_the_model_says --nocapture

demo: packages-demo build ## The main job: LAMMPS, killed and restarted, with and without a buffer (DEMO_ARGS=--slurm: under Slurm)
	FOREBAY_BIN="$(FOREBAY)" demo/run $(DEMO_ARGS)

bench: packages-bench build ## Print every speed as a ratio to the raw device (BENCH_ARGS=--quick)
	$(CARGO) build --release --locked -p forebay-bench
	"$(TARGET_DIR)/release/forebay-bench" --forebay "$(FOREBAY)" $(BENCH_ARGS)

lint: packages-docs lint-quick deny ## Format check, clippy and cargo deny

fmt:
	$(CARGO) fmt --all -- --check

clippy: packages-build
	$(CLIPPY)

fuzz: packages-build ## Run the fuzz targets, FUZZ_SECONDS each (nightly Rust; cargo-fuzz is built once below target/)
	scripts/fuzz --version $(CARGO_FUZZ_VERSION) --seconds $(FUZZ_SECONDS) "$(TOOLS)"

deny:
	scripts/deny --version $(CARGO_DENY_VERSION) "$(TOOLS)"

# Builds nothing: what was built is installed, also by a root that has no cargo.
install: ## Install what was built below PREFIX: executable, library, man pages, completions, units, documents
	scripts/install-files "$(FOREBAY)" "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)"

uninstall: ## Remove what install put there
	scripts/install-files --remove "$(FOREBAY)" "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)"

clean: ## Remove what was built
	$(CARGO) clean
	rm -rf bench/results/scratch
