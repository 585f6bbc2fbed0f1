# SPDX-License-Identifier: Apache-2.0
# A thin front for Meson. `make help` lists what there is.

BUILD ?= build
SANITIZED = $(BUILD)-asan
THREADED = $(BUILD)-tsan
QUERN = $(BUILD)/src/cli/quern

all: $(BUILD)/build.ninja ## build the library, the quern command, tests and examples
	@ninja -C $(BUILD)

setup: ## install the packages that are missing
	@scripts/setup

demo: setup all ## build, and let the built-in model tell a story
	@echo
	@echo '$$ $(QUERN) generate -p "Tell me a story about a fox and a lantern."'
	@$(QUERN) generate -p "Tell me a story about a fox and a lantern."

test: setup all sanitized ## every test, also under AddressSanitizer and UBSan
	@scripts/check-includes
	@scripts/run-tests $(BUILD) $(SANITIZED)

check: all ## the quick tests
	@scripts/check-includes
	@scripts/run-tests --quick $(BUILD)

check-asan: setup sanitized ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/run-tests $(SANITIZED)

check-tsan: setup $(THREADED)/build.ninja ## the tests under ThreadSanitizer
	@ninja -C $(THREADED)
	@scripts/run-tests --quick $(THREADED)

faults: setup all ## plant each fault of tests/faults.txt and see a test catch it
	@scripts/plant-faults

bench: setup all ## speeds against the machine's limits and llama.cpp (installs it from PyPI)
	@bench/run

fmt: ## format the C sources
	@git ls-files '*.c' '*.h' '*.inl' | xargs clang-format -i

new-op: ## NAME=...: a new operation with its test
	@scripts/new-op "$(NAME)"

install: all ## install into PREFIX (Meson's default: /usr/local)
	@meson install -C $(BUILD)

sanitized: $(SANITIZED)/build.ninja
	@ninja -C $(SANITIZED)

$(BUILD)/build.ninja: | setup
	@meson setup $(BUILD) $(MESON_FLAGS)

$(SANITIZED)/build.ninja: | setup
	@meson setup $(SANITIZED) --buildtype=debugoptimized -Db_sanitize=address,undefined $(MESON_FLAGS)

$(THREADED)/build.ninja: | setup
	@meson setup $(THREADED) --buildtype=debugoptimized -Db_sanitize=thread $(MESON_FLAGS)

clean: ## remove the build folders
	@rm -rf $(BUILD) $(SANITIZED) $(THREADED)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1@\2/p' Makefile | column -t -s@

.PHONY: all setup demo test check check-asan check-tsan faults bench fmt new-op install sanitized clean help
