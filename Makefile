# SPDX-License-Identifier: Apache-2.0
#
# make demo   build, then tune the simulated engine from end to end
# make test   all tests

GO       ?= go
BIN      := bin/llmctl
CACHE    := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/llmctl
LINT_VER := v2.15.0
LINT     := $(CACHE)/tools/golangci-lint-$(LINT_VER)
# The race detector needs a C compiler.
RACE     := $(shell command -v $$($(GO) env CC) >/dev/null 2>&1 && echo -race)
PACKAGES ?= ./...

.PHONY: demo build test test-node test-evaluators lint vet bench bench-loadgen cover docs kubebed testbed-up clean

demo: build
	@state=$$(mktemp -d) && trap 'rm -rf "$$state"' EXIT && export LLMCTL_STATE_DIR="$$state" && \
	$(BIN) autobench run -f examples/quickstart/experiment.yaml --name demo && \
	echo && echo '$$ llmctl autobench best demo' && $(BIN) autobench best demo && \
	echo && echo '$$ llmctl autobench best demo -o yaml    # pipe this into: kubectl apply -f -' && $(BIN) autobench best demo -o yaml

build:
	@echo "building $(BIN) (the first time takes a minute or two)"
	@$(GO) build -o $(BIN) ./cmd/llmctl

# The control plane that the tests use: built once, which takes about ten minutes
# on two cores, and kept in the user's cache directory.
kubebed:
	@$(GO) run ./test/bed/cmd/up build

# One package at a time: several of them start a control plane of their own.
test: kubebed
	@test -n "$(RACE)" || echo "no C compiler found: testing without the race detector"
	$(GO) test $(RACE) -p 1 -timeout 30m $(PACKAGES)

# The tests on a real kubelet, containerd and runc: Linux and root; elsewhere they say why not.
test-node:
	CGO_ENABLED=0 $(GO) test -v -tags node -count=1 -timeout 30m ./test/node

# The real genai-bench and inference-perf against the simulated engine: installs
# them into environments of their own, and says so where that cannot be done.
test-evaluators:
	$(GO) test -v -tags evaluators -count=1 -timeout 30m ./test/evaluators

lint: $(LINT)
	$(LINT) run --allow-parallel-runners $(PACKAGES)
	$(GO) vet $(PACKAGES)
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these files"; exit 1; }
	$(GO) mod tidy -diff

$(LINT):
	@echo "building golangci-lint $(LINT_VER) into $(dir $@) (once; takes a few minutes)"
	@mkdir -p $(dir $@) && GOBIN=$(CACHE)/tools $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VER)
	@mv $(CACHE)/tools/golangci-lint $@

bench:
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m $(PACKAGES)

# The load generator: against the engine's own clock, its memory, and what one core takes.
bench-loadgen:
	$(GO) test -run '^$$' -bench 'Loadgen|^BenchmarkRun$$' -benchtime 1x -timeout 30m ./test/e2e ./plugins/loadgen

cover:
	$(GO) test -coverprofile=coverage.out -timeout 30m $(PACKAGES)
	$(GO) tool cover -func=coverage.out | tail -1

# The command reference in doc/reference, and doc/rbac.yaml.
docs:
	$(GO) test ./cmd -run 'Reference|Role' -update

# A control plane to try things on; prints its kubeconfig and runs until Ctrl-C.
testbed-up:
	@$(GO) run ./test/bed/cmd/up

clean:
	rm -rf bin dist coverage.out
