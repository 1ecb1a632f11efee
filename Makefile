# larder: everything a developer or CI runs. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
BIN     := bin
VENV    := .venv
TOOLS   := $(abspath $(BIN)/tools)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)

# go-nvml's C header is full of deprecated declarations.
export CGO_CFLAGS ?= -O2 -Wno-deprecated-declarations

# All builds, tests and linters with one set of flags: what one of them has compiled, the others find in Go's cache.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(GOFLAGS))

# The fast build decodes with libjpeg-turbo, linked statically where its archive is there. Without its headers, without
# a C compiler or with CGO_ENABLED=0 the portable build decodes in Go.
JPEG_PROGRAM = printf '\#include <stdio.h>\n\#include <jpeglib.h>\n'
HAVE_JPEG = $(shell $(JPEG_PROGRAM) | $${CC:-cc} -E - >/dev/null 2>&1 && [ "$${CGO_ENABLED:-1}" = 1 ] && echo yes)
HAVE_STATIC = $(shell f=$$($${CC:-cc} -print-file-name=libjpeg.a 2>/dev/null); [ -f "$$f" ] && echo yes)
TAGS = $(if $(HAVE_JPEG),turbo$(if $(HAVE_STATIC),,$(comma)turbo_shared),)
comma := ,
# In CI the tests against a real PyTorch and a real S3 server must run. make nightly demands the other servers, the
# writers, a browser and what make cross takes too.
REQUIRE_TORCH = $(if $(CI),LARDER_REQUIRE_TORCH=1 LARDER_REQUIRE_S3=1,)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 18

.PHONY: build
build: ## build bin/larder
	@[ -n "$(HAVE_JPEG)" ] || echo "larder: libjpeg-turbo's headers are missing: building with the Go decoder" \
	  "(slower, parity: false). For the fast one: apt-get install libjpeg62-turbo-dev, then make build"
	$(GO) build -tags '$(TAGS)' -ldflags '-X main.commit=$(COMMIT)' \
	  -o $(BIN)/larder ./cmd/larder

.PHONY: build-stepped
build-stepped: build ## bin/larder-failpoints, whose clock tests step and whose disk they make fail
	$(GO) build -tags '$(TAGS)$(comma)failpoints' -o $(BIN)/larder-failpoints ./cmd/larder

.PHONY: demo
demo: build ## four jobs on generated images, unshared and shared, with a report
	$(BIN)/larder demo

# The lanes: make check, make test, .ci/run (both, and test-ci), make nightly. CONTRIBUTING.md has their
# bars. internal/tools/lanes/run.py runs a test that failed again only if known.txt lists it as flaky.
#
# The Go tests compute and the Python tests mostly wait, so they run beside each other. The output of each is printed
# whole when it ends; a failure of one does not end the other.
BESIDE = --no-print-directory --keep-going --jobs=2 --output-sync=target
RUN = $(VENV)/bin/python internal/tools/lanes/run.py
# Ten times what the slowest package takes: a machine that is ten times slower passes.
GO_TIMEOUT = -timeout 40m
# golangci-lint vets.
GO_FAST = -vet=off $(GO_TIMEOUT)
# Tests make much garbage in small heaps: a third of their processor time was collecting it. The nightly lane has Go's
# default.
LAZY = GOGC=400
# make check runs these: the packages that test pages and the house, and the generated references of others.
HOUSE := ./docs ./internal/archtest
REFERENCES := ^Test(Generated|CLIDocs|ErrorDocs|SamplerDocs|ConfigurationDocs|MetricsDocs|DocsName)
REFERENCE_ROOMS := ./cmd/larder ./internal/config ./internal/rpc ./internal/telemetry ./bench

.PHONY: test
test: setup build ## every unit, property and golden test, and each promise against the real daemon
	@echo "Go and Python tests run beside each other; each prints what it found when it ends"
	@$(MAKE) $(BESIDE) GO='nice -n 5 $(GO)' test-go test-python test-pure

.PHONY: test-go
test-go: ## Go tests: all but those of make check, of the fault lane and of test-pure
	$(LAZY) $(REQUIRE_TORCH) LARDER_PYTHON=$(abspath $(VENV))/bin/python GO='$(GO)' $(RUN) go \
	  --flags "-p 3 -tags '$(TAGS)' $(GO_FAST) -skip '$(REFERENCES)'" $$(internal/tools/lanes/packages.sh rest)

.PHONY: test-pure
test-pure: ## the pure Go packages, with their assertions; the longest statistics without
	$(LAZY) GO='$(GO)' $(RUN) go --flags "-tags '$(TAGS)$(comma)invariants' $(GO_FAST)" $$(internal/tools/lanes/packages.sh pure)
	$(LAZY) GO='$(GO)' $(RUN) go --flags "-tags '$(TAGS)' $(GO_FAST) -run '$(LONG)'" ./dsa ./internal/coordinator
LONG := ^Test(NoSampleIsEarlyForEver|NoStepIsLongerForALargerDataset)$$

.PHONY: test-python
test-python: build-stepped ## Python tests against the real daemon, and of what the benchmarks compute
	$(REQUIRE_TORCH) LARDER_BIN=$(abspath $(BIN))/larder LARDER_REQUIRE_BIN=1 \
	  LARDER_TEST_BIN=$(abspath $(BIN))/larder-failpoints $(RUN) pytest -q -n $(PYTEST_PROCESSES) --dist worksteal \
	  $(addprefix --ignore=,$(PAGE_TESTS)) python/tests bench/py
# What runs the code of the guides and the examples, and what runs type checkers over programs: make test-ci has it.
PAGE_TESTS := $(addprefix python/tests/test_,e2e_pages.py examples.py frameworks_page.py types.py)
# Most of a test's time is waiting for the daemon and for processes that import torch.
PYTEST_PROCESSES ?= 3

.PHONY: test-ci
test-ci: ## what CI runs beside check and test: -race, faults, the decoder in Go, the code of the guides
	$(MAKE) --no-print-directory --keep-going race faults test-portable test-pages test-writers

.PHONY: test-portable
test-portable: ## internal/prep as it is built without libjpeg-turbo
	$(RUN) go --flags "$(GO_FAST)" ./internal/prep

.PHONY: test-pages
test-pages: build ## every code block and command of the guides; the types that a script sees
	$(REQUIRE_TORCH) LARDER_BIN=$(abspath $(BIN))/larder LARDER_REQUIRE_BIN=1 $(RUN) pytest -q -n 2 --dist worksteal $(PAGE_TESTS)

WRITERS = TAGS='$(TAGS)' VENV=$(VENV) LARDER_BIN=$(abspath $(BIN))/larder LARDER_REQUIRE_BIN=1 \
  internal/tools/lanes/writers.sh $(abspath $(VENV))/bin/python
.PHONY: test-writers
test-writers: build ## readers of packed files beside the formats' own, where either changed
	$(WRITERS)

.PHONY: writers
writers: build ## the same in any case; then CI need not, until they change again
	$(WRITERS) always

RACE = -race -gcflags=all=-dwarf=false # nothing for a debugger: 6 % less time to compile
.PHONY: race
race: ## packages that start goroutines, under the race detector, without what internal/tools/lanes/race.tsv lists
	$(LAZY) $(RUN) go --flags "$(RACE) -short -p 3 $(GO_FAST) -tags '$(TAGS)' \
	  -skip '$$(internal/tools/lanes/packages.sh race-skip)'" $$(internal/tools/lanes/packages.sh race)
	$(RUN) go --flags "$(RACE) $(GO_FAST) -tags '$(TAGS)' -run 'Loop|Unread|Concurrently'" \
	  ./internal/coordinator ./tiers/residency

.PHONY: faults
faults: ## the built daemon killed, cut off, on a full disk: a few of each
	LARDER_PYTHON=$(abspath $(VENV))/bin/python $(RUN) go --flags "$(GO_FAST) -tags '$(TAGS)'" ./internal/chaostest

.PHONY: flaky
flaky: ## make test ten times, five of them beside a full load; one failure fails it
	internal/tools/lanes/flaky.sh

.PHONY: lanes
lanes: ## out/lanes.tsv: the lane of each test, and what became of those that BASE had
	$(VENV)/bin/python internal/tools/lanes/table.py $(BASE)

.PHONY: test-frameworks
test-frameworks: build ## real Lightning, Accelerate, Hugging Face Trainer, killed and resumed (FRAMEWORKS: some); 6 GB
	internal/tools/frameworks.sh $(abspath $(BIN))/larder $(FRAMEWORKS)

.PHONY: test-report
test-report: bench-smoke ## make bench-smoke, and look at its report with Chromium
	LARDER_REPORT=$(abspath out/bench/report.html) LARDER_REQUIRE_BROWSER=1 \
	  $(GO) test -count=1 -tags '$(TAGS)' -run TestSmokeReport ./bench/report

.PHONY: setup
setup: ## install what the tests need, into the system (Debian, root), .venv and bin/tools (an S3 server)
	@TAGS='$(TAGS)' internal/tools/setup.sh $(VENV)

# What a change must pass beside the tests. Tools are pinned in internal/tools and installed into bin/tools.
.PHONY: check
check: tools build ## format, linters, modules, protocol buffers, types, documentation and its site, counts
	$(MAKE) $(BESIDE) check-go check-modules check-proto check-python check-counts check-docs docs

.PHONY: setup-nightly
setup-nightly: ## also the writers of packed files, Azurite, nginx, a browser, tools for 64-bit ARM
	@TAGS='$(TAGS)' internal/tools/setup.sh $(VENV) nightly

.PHONY: tools
tools: ## install the tools of make check, at their pinned versions
	@TAGS='$(TAGS)' internal/tools/setup.sh $(VENV) $(TOOLS)

GO_ROOMS := $(wildcard bench cachepolicy client cmd docs dsa examples internal jobs proto tiers)
.PHONY: check-go
check-go: ## gofmt and golangci-lint
	@unformatted=$$(gofmt -l $(GO_ROOMS)); [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted"; exit 1; }
	GOGC=off GOMEMLIMIT=3GiB $(TOOLS)/golangci-lint run --build-tags '$(TAGS)' ./... # a third less processor time

.PHONY: check-modules
check-modules: ## go.mod and go.sum are as go mod tidy writes them, and a download checks the sums
	$(GO) mod tidy -diff

.PHONY: check-proto
check-proto: ## buf lint; compatible with the last commit on main (BASE: another); generated code is up to date
	internal/tools/proto.sh $(TOOLS)

PYTHON_TOOLS = $(TOOLS)/python/bin
.PHONY: check-python
check-python: ## ruff, mypy --strict, pyright
	$(PYTHON_TOOLS)/ruff check . python
	cd python && $(PYTHON_TOOLS)/mypy --strict --python-executable $(abspath $(VENV))/bin/python
	cd python && $(PYTHON_TOOLS)/pyright --pythonpath $(abspath $(VENV))/bin/python larder

.PHONY: check-docs
check-docs: build ## pages and references agree with the code; who may import whom
	$(GO) test $(GO_FAST) -tags '$(TAGS)' $(HOUSE)
	$(GO) test $(GO_FAST) -tags '$(TAGS)' -run '$(REFERENCES)' $(REFERENCE_ROOMS)

.PHONY: counts
counts: build ## write down what fell, and what a commit may raise (internal/tools/counts/counts.txt)
	$(GO) run ./internal/tools/counts -update

.PHONY: check-counts
check-counts: build ## what may not grow back; no test disappears without a reason
	$(GO) run ./internal/tools/counts -check
	$(VENV)/bin/python internal/tools/lanes/table.py

.PHONY: generate
generate: tools ## generate Go from proto, and the references in docs/
	cd proto && PATH=$(TOOLS):$(TOOLS)/python/bin:$$PATH buf generate
	$(GO) test -tags '$(TAGS)' -run '^TestGenerated$$' ./cmd/larder -update

.PHONY: docs
docs: setup ## build the documentation as a site in out/site; a link that leads nowhere fails it
	@cmp -s docs/site/requirements.txt $(VENV)/docs-requirements.txt || { \
	  $(VENV)/bin/pip install -q --disable-pip-version-check -r docs/site/requirements.txt && cp docs/site/requirements.txt $(VENV)/docs-requirements.txt; }
	rm -rf out/site
	$(VENV)/bin/python -m sphinx -b html -W --keep-going -q -c docs/site -d out/doctrees docs out/site
	@echo "open out/site/index.html"

.PHONY: fuzz-short
fuzz-short: ## every fuzz target for FUZZTIME (10s)
	@TAGS='$(TAGS)' internal/tools/fuzz.sh $${FUZZTIME:-10s} $$($(GO) list ./...)

.PHONY: test-parsers
test-parsers: ## what reads files and frames, fuzzed for PARSERTIME (10s) each
	@TAGS='$(TAGS)' internal/tools/fuzz.sh $${PARSERTIME:-10s} $(PARSERS)
PARSERS := ./internal/journal ./internal/resume ./internal/session/wire ./internal/config ./internal/source/subset \
  ./internal/source/packed ./internal/audit ./internal/store ./internal/prep/sandbox ./internal/prep/fields \
  ./internal/record ./internal/engine/crew

.PHONY: bench
bench: setup build ## larder beside its peers and the bars, BENCH_MINUTES (14); rewrites the rows of docs/benchmarks.md
	TAGS='$(TAGS)' LARDER_BIN=$(abspath $(BIN))/larder \
	  $(VENV)/bin/python bench/py/bench.py --minutes $(BENCH_MINUTES) --write
	LARDER_BIN=$(abspath $(BIN))/larder $(VENV)/bin/python bench/py/peers.py --if-built --minutes $(PEER_MINUTES) --write
BENCH_MINUTES ?= 14

.PHONY: bench-peers
bench-peers: setup build ## larder beside tf.data, FFCV, DALI and others, each in its own environment; PEER_MINUTES (25)
	$(VENV)/bin/python bench/py/peers_env.py
	LARDER_BIN=$(abspath $(BIN))/larder $(VENV)/bin/python bench/py/peers.py --minutes $(PEER_MINUTES) --write
PEER_MINUTES ?= 25

.PHONY: bench-compare
bench-compare: setup build ## what this tree changed against BASE (a git ref), interleaved; ONLY names runs
	@[ -n "$(BASE)" ] || { echo 'say which: make bench-compare BASE=main'; exit 2; }
	TAGS='$(TAGS)' LARDER_BIN=$(abspath $(BIN))/larder \
	  $(VENV)/bin/python bench/py/bench.py --minutes $(BENCH_MINUTES) --base '$(BASE)' --only '$(ONLY)'

.PHONY: bench-smoke
bench-smoke: build ## simulate policies, systems, samplers on demand of every kind; writes out/bench/report.html
	bench/smoke.sh $(abspath $(BIN))/larder $(abspath out/bench)

.PHONY: cross
cross: ## 64-bit ARM: the portable build; with qemu the decoder in Go, with CC_ARM64 and a libjpeg the kernels in C
	CC_ARM64=$(CC_ARM64) QEMU_ARM64=$(QEMU_ARM64) GO='$(GO)' internal/tools/cross.sh
CC_ARM64 ?= aarch64-linux-gnu-gcc
QEMU_ARM64 ?= qemu-aarch64-static

.PHONY: nightly
nightly: setup setup-nightly build-stepped ## tests in their long forms: PART=kills, or PART=all; without PART, what the record has
	TAGS='$(TAGS)' PYTHON=$(abspath $(VENV))/bin/python internal/tools/nightly.sh $(PART)

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) $(VENV) larder-demo.html
