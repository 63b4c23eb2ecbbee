# Drover. `make` lists the targets; `make run` and `make test` set up all they need.
SHELL   := /bin/bash
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/drover-run/drover/internal/version.Version=$(VERSION)
NODE    ?= 1
BED     := go run ./integration/cmd/bed

.DEFAULT_GOAL := help
.PHONY: help build deps up down shell run test check lint generate bench soak fuzz clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## the static binary, bin/drover
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/drover ./cmd/drover

generate: ## Go code from the protobuf files (needs protoc)
	cd api && PATH="$$(dirname $$(go tool -n protoc-gen-go)):$$(dirname $$(go tool -n protoc-gen-connect-go)):$$PATH" \
	  protoc -I . --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative drover/v1/*.proto

clean: ## remove what was built; .cache stays
	rm -rf bin out
