# Drover. `make` lists the targets; `make run` and `make test` set up all they need.
SHELL   := /bin/bash
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/drover-run/drover/internal/version.Version=$(VERSION)
NODE    ?= 1
BED     := go run ./integration/cmd/bed
GO_TEST := go test -timeout 10m

.DEFAULT_GOAL := help
.PHONY: help build deps up down shell run test check lint generate bench soak fuzz clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## the static binary, bin/drover
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o internal/innerbin/bin/harness ./cmd/drover-harness
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o internal/innerbin/bin/helper ./cmd/drover-helper
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/drover ./cmd/drover

deps: ## list what this machine lacks and install it (Debian, root)
	$(BED) deps -install

up: deps build ## three machines and HDFS in the background
	$(BED) up -nodes 3 -hdfs

down: ## end them; nothing is left
	$(BED) down

shell: ## a shell on a machine: make shell NODE=1
	$(BED) shell -node $(NODE)

run: deps build ## a real MapReduce job on three machines beside its data
	go build -o bin/scene ./integration/cmd/scene
	$(BED) run -nodes 3 -hdfs -books 32 -- bin/scene -drover bin/drover

# Packages under scheduler/ start no goroutine, which a test in internal/imports
# holds: the race detector has nothing to see there and makes them eight times
# slower. The exception does.
PURE = $$(go list ./scheduler/... | grep -v '/scheduler/sim/run$$')
check: lint ## format, vet, lint, imports, unit tests with the race detector; no root
	@start=$$SECONDS; \
	$(GO_TEST) -short $(PURE) && $(GO_TEST) -race -short $$(go list ./... | grep -v '/scheduler') ./scheduler/sim/run && \
	echo "unit tests: $$((SECONDS - start)) s"

lint: ## format, vet, staticcheck, and that generated code is fresh
	@bad=$$(git ls-files '*.go' | xargs gofmt -l); [ -z "$$bad" ] || { echo "not formatted: $$bad"; exit 1; }
	go vet ./...
	go tool staticcheck -checks 'all,-ST1000,-ST1003,-ST1005,-ST1008,-ST1012,-ST1016,-ST1020,-ST1021,-ST1022' ./...

test: deps build check ## check, then the suites and jobs on real machines
	./integration/test.sh

generate: ## Go code from the protobuf files (needs protoc)
	cd api && PATH="$$(dirname $$(go tool -n protoc-gen-go)):$$(dirname $$(go tool -n protoc-gen-connect-go)):$$PATH" \
	  protoc -I . --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative drover/v1/*.proto

bench: ## speed, as tables in out/bench
	./integration/bench.sh

soak: ## the long variants: thousands of containers, hours of faults
	DROVER_SOAK=1 ./integration/test.sh

fuzz: ## every parser for a while each: make fuzz FUZZTIME=30s
	./integration/fuzz.sh $(or $(FUZZTIME),10s)

clean: ## remove what was built; .cache stays
	rm -rf bin out
