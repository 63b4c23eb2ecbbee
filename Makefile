# Drover. `make` lists the targets; `make run` and `make test` set up all they need.
SHELL   := /bin/bash
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/drover-run/drover/internal/version.Version=$(VERSION)
PROFILE := cmd/drover/drover.pgo# integration/bench.sh profile writes it
NODE    ?= 1
TESTBED := go run ./integration/cmd/testbed
GO_TEST := go test -timeout 20m

# With -trimpath what is compiled does not depend on the folder: the build, the tests, the guides' copies of
# the repository and other clones share the build cache. What the user has set, also by `go env -w`, stays.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath)

# Nothing needs cgo but the race detector (unit.sh): the binary, lint and all other tests share what is compiled without it.
export CGO_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help build bed dist dist-check vagrant-test deps up down shell run test check lint generate pictures bench day soak fuzz attack chaos mutants exact clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## the static binary, bin/drover
	go build -ldflags '-s -w' -o internal/innerbin/bin/harness ./cmd/drover-harness
	go build -ldflags '-s -w' -o internal/innerbin/bin/helper ./cmd/drover-helper
	go build -ldflags '-s -w' -o internal/innerbin/bin/logger ./cmd/drover-logger
	go build -ldflags '-s -w' -o internal/innerbin/bin/init ./cmd/drover-init
	go build -pgo=$(PROFILE) -ldflags '$(LDFLAGS)' -o bin/drover ./cmd/drover

dist: ## static binaries and Debian packages, amd64 and arm64, with checksums: out/dist
	dist/build.sh out/dist

dist-check: dist ## build the same commit again elsewhere and compare every byte
	dist/check.sh out/dist

vagrant-test: ## the package on machines with systemd: install, run, upgrade, reboot, purge (emulated where there is no KVM)
	dist/build.sh out/vagrant amd64
	integration/vagrant/test.sh out/vagrant

deps: ## list what this machine lacks and install it (Debian, root)
	$(TESTBED) deps -install

up: deps build ## three machines and HDFS in the background
	$(TESTBED) up -nodes 3 -hdfs

down: ## end them and leave nothing behind
	$(TESTBED) down

shell: ## a shell on a machine: make shell NODE=1
	$(TESTBED) shell -node $(NODE)

run: deps build ## a real MapReduce job on three machines with its data
	go build -o bin/demo ./integration/cmd/demo
	$(TESTBED) run -nodes 3 -hdfs -books 32 -- bin/demo -drover bin/drover

# Fills the test bed's cache in the background; integration/test.sh waits for it and shows what failed.
bed:
	mkdir -p out
	go build -o bin/testbed ./integration/cmd/testbed
	nohup nice -n 5 bin/testbed build >out/bed.txt 2>&1 &

check: lint ## format, vet, lint, imports, unit tests with the race detector; no root
	./integration/unit.sh

lint: ## format, vet, staticcheck, the scripts of the page
	@set -o pipefail; bad=$$(git ls-files '*.go' | xargs gofmt -l) || exit 1; [ -z "$$bad" ] || { echo "not formatted: $$bad"; exit 1; }
	go vet ./...
	go tool staticcheck -checks 'all,-ST1000,-ST1003,-ST1005,-ST1008,-ST1012,-ST1016,-ST1020,-ST1021,-ST1022' ./...
	integration/deadcode.sh
	ui/lint.sh

test: deps build bed check ## check, then the suites and jobs on real machines
	DROVER_CHECKED=out/check ./integration/test.sh

generate: ## Go code from the protobuf files (needs protoc), and docs/reference
	cd api && PATH="$$(dirname $$(go tool -n protoc-gen-go)):$$(dirname $$(go tool -n protoc-gen-connect-go)):$$PATH" \
	  protoc -I . --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative drover/v1/*.proto
	go test -count 1 -run '^TestReferenceIsFresh$$' ./cmd/drover -update

pictures: deps build ## the pictures of the web page in docs/pictures
	go run ./integration/cmd/pictures -drover bin/drover

bench: ## benchmarks, with tables in out/bench and pages in docs/measured
	./integration/bench.sh

day: ## 50,000 short jobs and 500,000 tasks: does anything grow? make day JOBS=5000
	JOBS=$(JOBS) integration/bench.sh day

soak: deps build check ## check, then the long variants of the tests: thousands of containers, 1,000 faults of make chaos, 10 million inputs of each fuzz target
	DROVER_SOAK=1 DROVER_CHECKED=out/check ./integration/test.sh
	FUZZTIME=30s LEDGER=out/fuzz/ledger.jsonl integration/bench.sh damage fuzz

attack: build ## every call by every kind of identity, floods of one user, revocation
	$(GO_TEST) -count=1 -run 'Access|Token|Stranger|Handshake|StopNobody|SlowBodies|Stalled|NoJobUses|RefusedBefore|Revo|KeptApart|Secrets|StopNobodyElse|Turns|OfOneUser|OfOneNode|AreShared|ConnectionsOf|RefusedCalls|Paused|Budget|Believed|Login' ./coordinator/... ./node ./internal/pki ./jobspec ./cmd/drover
	bin/drover bench floods

chaos: deps ## faults from a seed, on three coordinators and three machines: make chaos FAULTS=50 SEED=1 ONLY='disk slow'
	ONLY='$(ONLY)' integration/chaos.sh $(or $(FAULTS),50) $(SEED)

mutants: ## bugs put in on purpose, and how often the simulations find each: docs/measured/mutants.md
	./integration/bench.sh mutants

exact: ## out/simulation: simulated clusters whose seeds replay exactly: RAPID_SEED=7 out/simulation -test.run TestSimulatedCluster -test.v
	mkdir -p out
	DROVER_EXACT=$(CURDIR)/out go test -count=1 -run '^TestCompileExact$$' -timeout 1h ./integration/simcluster

fuzz: ## every fuzz target: make fuzz FUZZTIME=30s; with INPUTS=10000000 so many inputs, and a page of them
	$(if $(INPUTS),INPUTS=$(INPUTS) FUZZTIME=$(or $(FUZZTIME),0s) integration/bench.sh fuzz,go run ./integration/cmd/fuzz -ledger $$(mktemp -d)/ledger.jsonl -time $(or $(FUZZTIME),10s))

clean: ## remove build results; keeps .cache
	rm -rf bin out
