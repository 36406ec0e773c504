# Forgeyard node. `make` alone prints the usage: it lists the lines with two hashes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# A toolchain that scripts/setup.sh had to fetch stands before any other.
export PATH := $(CURDIR)/.cache/go/bin:$(PATH)

# One build cache for all: a package compiled for a binary serves vet, staticcheck
# and the tests too. Without cgo the binaries are static and no C compiler is needed.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS 2>/dev/null)) -trimpath

BINARIES := forgeyard-node forgeyard-central fyjob
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)
PLATFORMS ?= linux/arm64 darwin/arm64 windows/amd64

# The suites' size: two cores and a few minutes each.
SEEDS     ?= 2000
HOURS     ?= 8
FIRST     ?= $(shell date +%s)
DEPTH     ?= 0
RAFTSEEDS ?= 12
FUZZTIME  ?= 10s
SUITE     ?= all
TESTFLAGS ?= -timeout 8m
E2EFLAGS  ?= -timeout 15m
MINUTES   ?= 2

phase := scripts/phase.sh

.PHONY: help
help: ## this list
	@echo 'usage: make TARGET'
	@awk -F ' *## *' '/^[a-z0-9-]+:.*##/ { sub(/:.*/, "", $$1); printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what the rest needs (Debian), if it is not there
	@scripts/setup.sh

.PHONY: build
build: setup ## the three static binaries, into bin/
	go build -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(BINARIES))

.PHONY: demo
demo: build ## a site of three nodes loses its uplink and a runner, and goes on (ARGS=--keep leaves it running)
	bin/forgeyard-node demo $(ARGS)

.PHONY: test
test: setup ## everything that must be green: check, unit, e2e, partitions, and the simulated sites of three nets
	@$(phase) build $(MAKE) --no-print-directory build
	@$(phase) check $(MAKE) --no-print-directory check
	@$(phase) unit  $(MAKE) --no-print-directory unit
	@$(phase) e2e   $(MAKE) --no-print-directory e2e
	@$(phase) partition $(MAKE) --no-print-directory partition
	@$(phase) sim   $(MAKE) --no-print-directory sim
	@$(phase) explore $(MAKE) --no-print-directory explore
	@$(phase) sim-raft $(MAKE) --no-print-directory sim-raft

.PHONY: check
check: setup ## what reads the code without running it: format, vet, staticcheck, house rules, platforms, generated code
	scripts/check-format.sh
	go vet ./...
	go tool staticcheck ./...
	go test ./internal/arch
	scripts/generate.sh --check
	scripts/check-cross.sh $(PLATFORMS)

.PHONY: unit
unit: ## go test of every package, without the end-to-end suite
	go test $(TESTFLAGS) $$(go list ./... | grep -v '/e2e\(/\|$$\)')

.PHONY: race
race: ## the same under the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race -timeout 20m $$(go list ./... | grep -v '/e2e\(/\|$$\)')

.PHONY: e2e
e2e: build ## the real binaries on loopback and in namespaces (RUN=regexp selects)
	FORGEYARD_BIN=$(CURDIR)/bin go test $$(go list ./e2e/... | grep -v /partition) -count=1 $(E2EFLAGS) $(if $(RUN),-run '$(RUN)')

.PHONY: partition
partition: build ## five daemons and their central one on machines of their own, hurt as SEED=n draws it, for MINUTES=2
	FORGEYARD_BIN=$(CURDIR)/bin go test ./e2e/partition -count=1 -timeout 60m -v $(if $(RUN),-run '$(RUN)') -args -seed=$(or $(SEED),1) -minutes=$(MINUTES)

.PHONY: sim
sim: ## simulated sites: SEEDS=n of them, or one in full with SEED=n, or a scenario with STORY=file
ifdef SEED
	@go run ./internal/simrun -seed $(SEED)
else ifdef STORY
	@go run ./internal/simrun -file $(STORY)
else
	go run ./internal/simrun -seeds $(SEEDS)
endif

.PHONY: sim-digests
sim-digests: ## the traces of some seeds against those that are checked in, on this machine and as a 32-bit program (RENEW=1 writes them anew)
	CI=1 go test ./simulation -count=1 -run '^TestDigests$$' $(if $(RENEW),-args -renew)
	CI=1 GOARCH=386 go test ./simulation -count=1 -run '^TestDigests$$'

.PHONY: sim-long
sim-long: ## fresh simulated sites for HOURS=8, after every seeded fault was looked for in up to 10,000 sites
	go test ./simulation -count=1 -timeout 0 -v -run '^TestFaults$$' -args -fault-seeds=10000
	@SEEDS=500 FIRST=$(FIRST) scripts/sim-raft.sh
	go run ./internal/simrun -for $(HOURS)h -from $(FIRST)

# SECONDS is bash's own variable: make's is told apart by where it was set.
.PHONY: explore
explore: ## everything that can happen to two runners, a job, a device and an uplink: for SECONDS=60, or to DEPTH=n steps (COMPANY=name for one; TROUBLES=2 at once to the end)
	go test ./simulation/explore -count=1 -timeout 30m -v -run '^TestExplore$$' -args -seconds=$(if $(filter environment undefined,$(origin SECONDS)),60,$(SECONDS)) -depth=$(DEPTH) $(if $(TROUBLES),-troubles=$(TROUBLES)) $(if $(COMPANY),-company='$(COMPANY)')
.PHONY: sim-raft
sim-raft: ## sites with the real Raft in virtual time, replayed exactly: RAFTSEEDS=n of them, or one in full with SEED=n (RENEW=1 writes their digests anew)
	@SEEDS=$(RAFTSEEDS) RENEW=$(RENEW) scripts/sim-raft.sh

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=10s (PKG=./cas for one package)
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh $(PKG)

.PHONY: bench
bench: build ## measure and print ratios (SUITE=name for one, PART=name for one of its measures)
	go run ./internal/bench -suite $(SUITE) -part "$(PART)"

.PHONY: soak
soak: build ## fresh seeds of nets 2 and 3, the end-to-end suite and ten minutes of partitions, over and over for SOAK=60 minutes
	@scripts/setup.sh soak
	FORGEYARD_BIN=$(CURDIR)/bin scripts/soak.sh

.PHONY: leaks
leaks: build ## 1,000 attempts of all kinds and ends, after which a daemon has what it had before (root; make e2e has 200 of them)
	FORGEYARD_BIN=$(CURDIR)/bin go test ./e2e -count=1 -timeout 30m -v -run '^TestNothingLeaks$$' -args -long

.PHONY: generate
generate: ## the Go code of api/forgeyard/v1/*.proto
	scripts/setup.sh generate
	scripts/generate.sh

.PHONY: coverage-rows
coverage-rows: ## requirement rows and cases that no test mentions (ROWS=DIR says where they are)
	@scripts/coverage-rows.sh $(ROWS)

.PHONY: clean
clean: ## remove what the build made
	rm -rf bin
