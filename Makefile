# The commands of this repository. Each installs what is missing by itself, or says exactly what to install.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Most tests wait for servers and timers now and then, so that two for each core keep it busy.
TEST_THREADS ?= $(shell n=$$(( 2 * $$(nproc) )); echo $$(( n < 4 ? 4 : n > 12 ? 12 : n )))

.PHONY: help demo quick test test-long test-systems check dependencies

help: ## Lists these commands.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: dependencies ## Builds the release and shows the main job on real data, beside rsync (3 minutes at most after the build).
	@scripts/demo

quick: dependencies ## Checks what a change needs before a commit: format, tidy rules, lints and unit tests of changed crates (2 minutes at most).
	@scripts/quick

# Shells start what runs in the background with SIGINT ignored, and commands that are tested would keep it so.
test: dependencies ## Runs all tests (about a quarter of an hour on 2 cores, after the build).
	@started=$$SECONDS; \
	runner=CARGO_TARGET_$$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z.-' 'A-Z__')_RUNNER; \
	if env --default-signal=INT,QUIT "$$runner=scripts/run-test-program" cargo test --workspace --no-fail-fast -- --test-threads=$(TEST_THREADS); then \
	  echo "make test: all tests passed in $$(( SECONDS - started )) s"; \
	else \
	  echo "make test: FAILED after $$(( SECONDS - started )) s; search the output above for 'FAILED' and 'panicked'"; exit 1; \
	fi

test-long: dependencies ## Runs the tests of random lives, kills and power cuts much longer than 'make test' does (BYTEBACK_LIVES, BYTEBACK_ROUNDS, BYTEBACK_RUNS and BYTEBACK_BACKUPS say how long).
	@export BYTEBACK_LIVES=$${BYTEBACK_LIVES:-300} BYTEBACK_ROUNDS=$${BYTEBACK_ROUNDS:-60}; \
	env --default-signal=INT,QUIT cargo test -p byteback-sync --test simulation -- --test-threads=$(TEST_THREADS)
	@BYTEBACK_RUNS=$${BYTEBACK_RUNS:-600} cargo test -p byteback-oplog --lib random -- --test-threads=$(TEST_THREADS)
	@BYTEBACK_BACKUPS=$${BYTEBACK_BACKUPS:-8760} cargo test -p byteback-store --test store a_year_of_backups
	@export BYTEBACK_LIVES=$${BYTEBACK_LIVES:-6} BYTEBACK_ROUNDS=$${BYTEBACK_ROUNDS:-60}; \
	env --default-signal=INT,QUIT cargo test -p byteback --test together --test crash --test power --test cut -- --test-threads=$(TEST_THREADS)

test-systems: dependencies ## Runs the tests that need other programs, which are large or take minutes to install (Borg 2, MinIO, SeaweedFS, HDFS, zfs-fuse, MooseFS, Ceph, QEMU with a kernel).
	@BYTEBACK_BORG2=$$(scripts/borg2) cargo test -p byteback --test commands -- --ignored borg_2
	@evaluation/systems/minio install >/dev/null
	@evaluation/systems/machine install
	@evaluation/systems/seaweedfs install >/dev/null
	@evaluation/systems/zfs install
	@evaluation/systems/moosefs install
	@evaluation/systems/ceph install
	@evaluation/systems/hdfs install >/dev/null
	@cargo test -p byteback --test systems -- --ignored minio_ seaweedfs_ hdfs_ machine_ zfs_ moosefs_ ceph_

check: dependencies ## Checks format, lints, crate edges and tidy rules.
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --quiet -- -D warnings
	@cargo xtask check
	@echo "make check: nothing to complain about"

dependencies: ## Installs what building and testing need.
	@scripts/install-dependencies
