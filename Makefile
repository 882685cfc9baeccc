# Forebay: everything a person or CI runs. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Where `mount -t fuse.forebay` looks for its helper. It is not below PREFIX on any system.
SBINDIR ?= /sbin
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
FOREBAY := $(TARGET_DIR)/release/forebay
TORCH_VENV := $(TARGET_DIR)/torch-venv
# cargo-deny is not packaged by Debian; `make deny` builds it once into this directory.
TOOLS := $(TARGET_DIR)/tools
CARGO_DENY_VERSION := 0.20.2
CARGO_FUZZ_VERSION := 0.13.1
# How long `make fuzz` runs each target.
FUZZ_SECONDS ?= 60
# System tests mount, kill and fill things: more at once than this only makes them wait for each other.
TEST_THREADS ?= 2
TEST_ARGS ?=
# How long the random test of the cache runs in `make test`, and in `make model`.
TEST_MODEL_SECONDS := 60
MODEL_SECONDS ?= 3600
BENCH_ARGS ?=

INSTALL_PACKAGES := scripts/install-packages

.PHONY: help build test torch model demo bench install uninstall lint fmt clippy deny fuzz clean \
	packages-build packages-test packages-demo packages-bench

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' Makefile

packages-build:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt

packages-test:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt scripts/apt-packages-run.txt tests/apt-packages.txt

packages-demo:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt scripts/apt-packages-run.txt demo/apt-packages.txt

packages-bench:
	@$(INSTALL_PACKAGES) scripts/apt-packages-build.txt scripts/apt-packages-run.txt bench/apt-packages.txt

build: packages-build ## Build the executable: target/release/forebay
	$(CARGO) build --release --locked -p forebay -p libforebay
	@echo "built $(FOREBAY)"

# The system tests run the release executable: what is tested is what is installed.
test: packages-test build torch ## Install what the tests need, check format and lints, run all tests
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	scripts/check-semantics
	scripts/deny --if-installed "$(TOOLS)"
	FOREBAY_CACHE_MODEL_S=$(TEST_MODEL_SECONDS) \
	FOREBAY_BIN="$(FOREBAY)" FOREBAY_TORCH_PYTHON="$(TORCH_VENV)/bin/python" $(CARGO) test --workspace --locked --no-fail-fast $(TEST_ARGS) \
		-- --test-threads=$(TEST_THREADS)
	# The lease code under random schedules of all its steps: some seconds, the same number each time.
	$(CARGO) test -p forebay-server --features shuttle --lib --locked schedules

# Real torch for the checkpoint writer's tests: 540 MB once, kept below target/.
torch: packages-test
	scripts/torch-venv "$(TORCH_VENV)"

model: packages-build ## Run the random test of the cache for MODEL_SECONDS (FOREBAY_SEED replays a run)
	FOREBAY_CACHE_MODEL_S=$(MODEL_SECONDS) $(CARGO) test -p forebay-server --lib --locked \
		-- --exact cache::tests::model::cache_is_what_the_model_says --nocapture

demo: packages-demo build ## The main job: LAMMPS, killed and restarted, with and without a buffer
	FOREBAY_BIN="$(FOREBAY)" demo/run

bench: packages-bench build ## Print every speed as a ratio to the raw device (BENCH_ARGS=--quick)
	$(CARGO) build --release --locked -p forebay-bench
	"$(TARGET_DIR)/release/forebay-bench" --forebay "$(FOREBAY)" $(BENCH_ARGS)

lint: fmt clippy deny ## Format check, clippy and cargo deny
	scripts/check-semantics

fmt:
	$(CARGO) fmt --all -- --check

clippy: packages-build
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

fuzz: packages-build ## Run the fuzz targets, FUZZ_SECONDS each (nightly Rust; cargo-fuzz is built once below target/)
	scripts/fuzz --version $(CARGO_FUZZ_VERSION) --seconds $(FUZZ_SECONDS) "$(TOOLS)"

deny:
	scripts/deny --version $(CARGO_DENY_VERSION) "$(TOOLS)"

install: build ## Install below PREFIX: executable, library and header, man pages, completions, mount helper
	scripts/install-files "$(FOREBAY)" "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)"

uninstall: ## Remove what install put there
	scripts/install-files --remove "$(FOREBAY)" "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)"

clean: ## Remove what was built
	$(CARGO) clean
	rm -rf bench/results/scratch
