# SPDX-License-Identifier: Apache-2.0
# A thin front for Meson. `make help` lists what there is.

BUILD ?= build
SANITIZED = $(BUILD)-asan
THREADED = $(BUILD)-tsan
ARM = $(BUILD)-arm
CLANG = $(BUILD)-clang
QUERN = $(BUILD)/src/cli/quern

# On a terminal ninja shows its progress on one line; elsewhere only what compilers say.
build = @if [ -t 1 ]; then ninja -C $(1) $(2); else ninja --quiet -C $(1) $(2); fi
# Meson's report is of interest when it fails.
comma = ,
configure = @said=$$(meson setup $(1) $(MESON_FLAGS) 2>&1) || { echo "$$said"; exit 1; }

all: $(BUILD)/build.ninja listed ## build the library, the quern command, tests and examples
	$(call build,$(BUILD))

setup: ## install the packages that are missing
	@scripts/setup

setup-tests:
	@scripts/setup --tests

TRAIN_DEMO = train --data models/demo/facts.jsonl --mask-prompt -o $(BUILD)/demo-adapter --iters 200 \
    --learning-rate 8e-3 --lr-schedule cosine --warmup-steps 20 --max-grad-norm 1 --steps-per-report 50
ASK_DEMO = generate -p "What does the owl keep?" --temp 0
demo: $(BUILD)/build.ninja listed ## build the command, let the built-in model tell a story, and teach it something
	@[ -x $(QUERN) ] || echo "Building, which takes a minute or two..."
	$(call build,$(BUILD),src/cli/quern)
	@echo
	@echo '$$ $(QUERN) generate -p "Tell me a story about a fox and a lantern."'
	@$(QUERN) generate -p "Tell me a story about a fox and a lantern."
	@echo
	@echo '$$ $(QUERN) $(value ASK_DEMO)'
	@$(QUERN) $(ASK_DEMO)
	@echo
	@echo '$$ $(QUERN) $(TRAIN_DEMO)'
	@rm -rf $(BUILD)/demo-adapter
	@$(QUERN) $(TRAIN_DEMO)
	@echo
	@echo '$$ $(QUERN) $(value ASK_DEMO) --adapter $(BUILD)/demo-adapter'
	@$(QUERN) $(ASK_DEMO) --adapter $(BUILD)/demo-adapter

test: setup-tests all sanitized ## every test, also under AddressSanitizer and UBSan
	@scripts/check-includes
	@scripts/check-names
	@scripts/check-format || [ $$? = 77 ]
	@QUERN_FUZZ_SECONDS=$${QUERN_FUZZ_SECONDS:-15} scripts/run-tests $(BUILD) $(SANITIZED)

check: all ## the quick tests
	@scripts/check-includes
	@scripts/check-names
	@scripts/check-format || [ $$? = 77 ]
	@scripts/run-tests --quick $(BUILD)

check-asan: setup sanitized ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/run-tests $(SANITIZED)

check-tsan: setup $(THREADED)/build.ninja listed ## the tests of what has threads, under ThreadSanitizer: half an hour or more
	$(call build,$(THREADED))
	@scripts/run-tests --quick --suites core,ops,autodiff,models,nn,generate,train,convert,io,backends,server $(THREADED)

check-clang: $(CLANG)/build.ninja listed ## the quick tests as Clang builds them, without a warning: of SUITES=core,ops,... alone
	$(call build,$(CLANG))
	@scripts/run-tests --quick $(if $(SUITES),--suites $(SUITES)) $(CLANG)

check-arm: $(ARM)/build.ninja listed ## the quick tests as AArch64 programs, under qemu: half an hour or more
	$(call build,$(ARM))
	@scripts/run-tests --quick --under "qemu-aarch64 -L $(abspath $(ARM)-root)" $(ARM)

check-abi: setup-tests ## whether programs linked with the newest tag's library run with this one, by abidiff
	@scripts/check-abi || [ $$? = 77 ]

fuzz: setup sanitized ## the random graphs, and the parsers on changed files, under the sanitizers: FUZZ_SECONDS each (300)
	@for test in core_test_fuzz_graphs io_test_fuzz text_test_fuzz models_test_fuzz jinja_test_template; do \
	    QUERN_SOURCE=$(CURDIR) QUERN_FUZZ_SECONDS=$${FUZZ_SECONDS:-300} QUERN_FUZZ_SEED=$$(date +%s) \
	        ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1 \
	        $(SANITIZED)/tests/test-$$test || exit 1; \
	done

faults: setup all ## plant each fault of tests/faults.txt and see a test catch it
	@scripts/plant-faults

soak: setup all ## the server under mixed load: MINUTES (30); and under twenty times what it can do, for five
	@QUERN_SOURCE=$(CURDIR) python3 tests/server/test_soak.py $(QUERN) $${MINUTES:-30}
	@QUERN_SOURCE=$(CURDIR) python3 tests/server/test_overload.py $(QUERN) 300

bench: setup all ## speeds against the machine's limits and llama.cpp (installs it from PyPI)
	@bench/run

fmt: ## format the C sources
	@git ls-files '*.c' '*.h' '*.inl' | xargs clang-format-14 -i

check-format: ## whether they are formatted
	@scripts/check-format || [ $$? = 77 ]

new-op: ## NAME=...: a new operation with its test (KIND=elementwise or kernel)
	@scripts/new-op "$(NAME)" $(KIND)

new-model: ## NAME=...: a new model family with its golden test
	@scripts/new-model "$(NAME)"

install: $(BUILD)/build.ninja listed ## install into PREFIX (Meson's default: /usr/local), below DESTDIR where that is set
	@[ -z "$(PREFIX)" ] || meson configure $(BUILD) -Dprefix=$(abspath $(PREFIX))
	$(call build,$(BUILD))
	@meson install -C $(BUILD) --no-rebuild --quiet

sanitized: $(SANITIZED)/build.ninja listed
	$(call build,$(SANITIZED))

# Meson lists the sources when it configures, and what functions tests replace (scripts/test-wraps): after one came
# or went it has to look again.
list = { find src/ tests/ -name '*.c'; grep -ro '__real_[a-z0-9_]*' tests/ --include='*.[ch]'; } | sort -u
listed: | $(BUILD)/build.ninja
	@$(list) >$(BUILD)/sources.new; \
	if cmp -s $(BUILD)/sources.new $(BUILD)/sources; then rm $(BUILD)/sources.new; \
	else mv $(BUILD)/sources.new $(BUILD)/sources; touch meson.build; fi

$(BUILD)/build.ninja: | setup
	$(call configure,$(BUILD))
	@$(list) >$(BUILD)/sources

$(SANITIZED)/build.ninja: | setup
	$(call configure,$(SANITIZED) --buildtype=debugoptimized -Db_sanitize=address$(comma)undefined)

$(THREADED)/build.ninja: | setup
	$(call configure,$(THREADED) --buildtype=debugoptimized -Db_sanitize=thread)

$(CLANG)/build.ninja: export CC = clang
$(CLANG)/build.ninja: | setup-tests
	$(call configure,$(CLANG) -Dwerror_own=true)

$(ARM)/build.ninja: | $(ARM)-root/root.ini
	$(call configure,$(ARM) --cross-file $(ARM)-root/root.ini \
	    --cross-file scripts/cross/aarch64-linux-gnu.ini)

$(ARM)-root/root.ini: scripts/cross/make-root | setup-tests
	@scripts/cross/make-root $(ARM)-root

clean: ## remove the build folders
	@rm -rf $(BUILD) $(SANITIZED) $(THREADED) $(CLANG) $(ARM) $(ARM)-root build-faults build-faults-2 build-abi

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' Makefile

.PHONY: all setup setup-tests demo test check check-asan check-tsan check-clang check-arm check-abi faults fuzz soak bench fmt check-format new-op new-model install sanitized clean help listed
