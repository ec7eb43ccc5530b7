# make run    set up, build, fetch SmolLM2-135M-Instruct once and answer PROMPT with it; without the network, the small
#             model that comes with the program answers
# make build  set up and build build/outrider
# make test   everything the gate runs (.ci/run)
# make bench  the table of docs/kernels.md: limits, kernels, two models, and every peer that bench/peers/setup has built
# make soak   the long forms: fuzzing, identity schedules, ThreadSanitizer, the gcc build
# make kernels-static  a self-contained test program of the kernels, to carry to another processor
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.PHONY: run build test bench soak test-sanitized test-threads gcc kernels-static format clean setup

JOBS ?= 2
PROMPT ?= Explain in two sentences why the sky is blue.
-include build/toolchain.mk

LAUNCHER := -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache
export CCACHE_SLOPPINESS = pch_defines,time_macros
# $(call configure,folder,flags): the toolchain file is read by the shell so that a fresh setup counts at once.
configure = CXX=$$(sed -n 's/^CXX := //p' build/toolchain.mk) && CC=$$(sed -n 's/^CC := //p' build/toolchain.mk) && \
  cmake -G Ninja -S . -B $(1) -DCMAKE_CXX_COMPILER=$$CXX -DCMAKE_C_COMPILER=$$CC $(LAUNCHER) $(2) >/dev/null

setup:
	@scripts/setup

build: setup
	@$(call configure,build,)
	@ninja -C build -j $(JOBS) outrider

run: build
	@if model=$$(scripts/fetch_model); then build/outrider run "$$model" "$(PROMPT)"; else \
	  echo "the small model that comes with the program answers instead; it continues technical text" >&2; \
	  build/outrider run -p "$(PROMPT)"; fi

# Shapes with random weights are made once under the user's cache: MiniCPM5-1B's, and Qwen3.5-0.8B's with an MTP head.
BENCH_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/outrider
BENCH_MODEL := $(BENCH_CACHE)/bench/minicpm5-1b-4bit
BENCH_MTP_MODEL := $(BENCH_CACHE)/bench/qwen3.5-0.8b-4bit
bench: build
	@[ -d $(BENCH_MODEL) ] || { mkdir -p $(BENCH_CACHE)/bench && python3 bench/make_model.py $(BENCH_MODEL); }
	@[ -d $(BENCH_MTP_MODEL) ] || python3 bench/make_model.py $(BENCH_MTP_MODEL) qwen3.5-0.8b
	@build/outrider bench kernels
	@build/outrider bench mtp
	@build/outrider bench mtp --model $(BENCH_MTP_MODEL) --acceptance 0.85,0.67,0.52
	@for model in $(BENCH_MODEL) "$$(scripts/fetch_model)"; do \
	  echo "== $$model" && build/outrider bench decode prompt batch verify start --model "$$model" || exit; done
	@ls $(BENCH_CACHE)/peers/*/ready >/dev/null 2>&1 || echo "no peers: bench/peers/setup builds them"
	@[ ! -f $(BENCH_CACHE)/peers/llama_cpp/ready ] || for model in $(BENCH_MODEL) "$$(scripts/fetch_model --gguf)"; do \
	  echo "== $$model" && PEERS=llama_cpp bench/peers/run "$$model" || exit; done
	@[ ! -f $(BENCH_CACHE)/peers/llama_cpp/ready ] || bench/peers/run_mtp $(BENCH_MTP_MODEL)
# The Python peers need up to a second a token: one turn, a short prompt.
	@! ls $(BENCH_CACHE)/peers/mlx_lm/ready $(BENCH_CACHE)/peers/transformers/ready 2>/dev/null | grep -q . || \
	  PEERS="mlx_lm transformers_f32 transformers_bf16" bench/peers/run $(BENCH_MODEL) -n 1 -c 0 -p 64

# One order: cheap checks, program and unit tests, then the sanitized subset and short fuzz, then ctest's own summary.
test: setup
	@$(call configure,build,)
	@ninja -C build -j $(JOBS)
	@scripts/fetch_test_data
	@$(MAKE) --no-print-directory test-sanitized
	@ctest --test-dir build --output-on-failure --no-tests=error -j 1 --timeout 600

# Address and undefined-behaviour sanitizers over the tests of every room; with clang, short fuzz.
test-sanitized: setup
	@$(call configure,build-sanitized,-DOUTRIDER_SANITIZE=address$(comma)undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DOUTRIDER_RUST_TARGET_DIR=$(CURDIR)/build/rust -DOUTRIDER_FUZZ=$$([[ $$CXX == clang* ]] && echo ON || echo OFF))
	@ninja -C build-sanitized -j $(JOBS) sanitized
	@ctest --test-dir build-sanitized --output-on-failure --no-tests=error -j 1 -L sanitized --timeout 1200
comma := ,

soak: test gcc test-threads
	@OUTRIDER_SOAK=1 ctest --test-dir build --output-on-failure -L unit --timeout 7200
	@OUTRIDER_SOAK=1 ctest --test-dir build-sanitized --output-on-failure -L sanitized --timeout 7200

# ThreadSanitizer over the rooms that share work between threads.
test-threads: setup
	@$(call configure,build-threads,-DOUTRIDER_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DOUTRIDER_RUST_TARGET_DIR=$(CURDIR)/build/rust)
	@ninja -C build-threads -j $(JOBS) base_test device_test state_test engine_test
	@ctest --test-dir build-threads --output-on-failure --no-tests=error -R '^(base|device|state|engine)$$' --timeout 3600

# The second compiler: builds with warnings as errors and passes the unit tests.
gcc: setup
	@cmake -G Ninja -S . -B build-gcc -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc $(LAUNCHER) \
	  -DOUTRIDER_RUST_TARGET_DIR=$(CURDIR)/build/rust >/dev/null
	@ninja -C build-gcc -j $(JOBS)
	@ctest --test-dir build-gcc --output-on-failure -L unit --timeout 600

kernels-static: setup
	@$(call configure,build-static,-DOUTRIDER_STATIC=ON)
	@ninja -C build-static -j $(JOBS) kernels_test
	@echo build-static/kernels_test

format: setup
	@git ls-files -co --exclude-standard 'src/*.h' 'src/*.cpp' 'src/*.inc' 'fuzz/*.cpp' 'fuzz/*.h' | xargs clang-format-19 -i

clean:
	@rm -rf build build-sanitized build-gcc build-static build-threads
