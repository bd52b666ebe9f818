# `make up` starts a real cluster with Ebb; `make test` runs the whole gate; `make help` lists all targets.

.DEFAULT_GOAL := help
SHELL := bash
# A step that fails does not keep the later ones from running: one run tells all that is wrong.
MAKEFLAGS += --keep-going
.SHELLFLAGS := -euo pipefail -c

## Cluster

.PHONY: up down node sample kubeconfig status logs
up: ## start or update the dev cluster with Ebb and its samples (MONITORING=1: with Prometheus; ARGS=all: also what only tests need; ARGS=bare: without Ebb; ARGS=knative: with Knative Serving in place of Ebb; PROFILE=edge: with Ebb in one process; GATEWAY=envoy-gateway: with it in place of istio; NODES=3: with three nodes; KUBERNETES=v1.35.4: that version)
	@$(DEV) up $(ARGS) $(if $(MONITORING),monitoring) $(PROFILE) $(GATEWAY) $(if $(NODES),nodes=$(NODES)) $(KUBERNETES)

down: ## stop it and remove everything it created
	@$(DEV) down

node: ## end or mend one of several nodes (NAME=b DO=off: its power; DO='cut in', 'cut out nodes', 'cut control': its network; DO=freeze; DO=back)
	@$(DEV) node $(NAME) $(DO)

sample: ## make the image of a sample that is too large for `make up`, for the cluster that is up (NAME=llm: 400 MB)
	@$(DEV) sample $(NAME)

kubeconfig: ## print the command that sets KUBECONFIG for it
	@$(DEV) kubeconfig

status: ## show which of its programs run
	@$(DEV) status

logs: ## list its logs (NAME=kubelet: the end of one)
	@$(DEV) logs $(NAME)

DEV = dev/ctl.sh

## Gate

.PHONY: check format lint generated site unit fuzz test e2e brief-soak
check: format lint generated site unit ## format, lint, layering, generated code, links of the site, unit tests with race and shuffle

# Each step says how long it takes (test/step.sh).
STEPS_check = format lint generated site unit
STEPS_test = $(STEPS_check) cluster e2e soak
STEPS_e2e = cluster e2e
STEP = EBB_STEPS="$(STEPS_$(firstword $(MAKECMDGOALS)))" test/step.sh

format:
	@$(STEP) format 'bad=$$(git ls-files -co --exclude-standard -- "*.go" | xargs -r ls -d 2>/dev/null | xargs -r gofmt -l); \
	[ -z "$$bad" ] || { echo "these files are not formatted; run gofmt -w on them:"; echo "$$bad"; exit 1; }'

lint:
	@$(STEP) lint 'go vet ./...' 'go vet -tags e2e,release,edge,llm,kserve ./test/...' 'go tool -modfile=dev/tools/go.mod staticcheck ./...' \
		'go tool -modfile=dev/tools/go.mod staticcheck -tags e2e,release,edge,llm,kserve ./test/...' 'go vet -C dev/ctl ./...' 'go vet -C dev/h2spec ./...' 'go vet -C dev/argocd ./...' 'go vet -C dev/helm ./...'

generated: ## check that generated files, and files of npm packages, are up to date
	@$(STEP) generated '[ ! -x api/generate.sh ] || api/generate.sh --check' 'dashboard/vendor/vendor.sh --check' \
		'go run ./sim -rollouts 1000 | diff docs/simulation/rollouts.md -'

site: ## check that the site builds and that its links lead somewhere
	@$(STEP) site 'dev/site/build.sh --check'

# The race detector allocates, and builds with it use other socket calls than releases.
unit:
	@$(STEP) unit 'go test -race -shuffle=on -p 2 ./...' \
		'go test -run AllocatesNothing ./activator/internal/chain ./queue-proxy/internal/sidecar' \
		'go test ./forward -sequence-lasts 1m' \
		'go test ./controller/process -run TestWhatServesGoesOnServing -steady-for 1m -steady-from 1000' 'go test -C dev/ctl -race -shuffle=on -p 2 ./...'

.PHONY: tools
TOOLS = curl nghttp2-client nginx-light chromium fonts-inter protobuf-compiler python3-venv
tools: ## install the other programs that tests use, with apt-get; without them those tests are skipped, or fail if CI=true
	@for tool in curl h2load nginx chromium protoc; do command -v $$tool >/dev/null || missing=yes; done; \
	python3 -c 'import ensurepip' 2>/dev/null || missing=yes; \
	[ -z "$${missing:-}" ] || ! command -v apt-get >/dev/null || { apt-get -q update && apt-get -q install -y --no-install-recommends $(TOOLS); } >/dev/null || \
		echo "these could not be installed: $(TOOLS)"
	@command -v promtool >/dev/null || ! command -v apt-get >/dev/null || test/promtool.sh || echo "promtool could not be installed"

.PHONY: vendor
vendor: ## write the libraries of the dashboard's page, as dashboard/vendor/package-lock.json names them
	@dashboard/vendor/vendor.sh

fuzz: ## run each fuzz target for a minute (ARGS='-lasts 10m FuzzMachine': one for longer)
	@test/fuzz.sh $(ARGS)

test: tools check e2e brief-soak ## the whole gate, as in CI, with its tools; ends with a soak of one minute

brief-soak:
	@$(STEP) soak "$(MAKE) --no-print-directory soak ARGS='-lasts 1m -seed 1'"

e2e: ## start the dev cluster and run the end-to-end tests on it (GATEWAY=envoy-gateway: with it in place of istio; PROFILE=edge: on the edge profile; NODES=3: on three nodes; KUBERNETES=v1.35.4: on that version)
	@$(STEP) cluster '$(DEV) up all $(PROFILE) $(GATEWAY) $(if $(NODES),nodes=$(NODES)) $(KUBERNETES)'
	@$(STEP) e2e 'eval "$$($(DEV) kubeconfig)"; go test -tags e2e -count=1 -parallel 3 -timeout $(if $(NODES),1h,30m) ./test/e2e/...'

## Release

REGISTRY ?= registry.example.com/ebb
DIST ?= dist

.PHONY: release sign samples test-release reproduce
release: ## write what users install to dist/ (VERSION=v0.1.0 REGISTRY=registry.example.com/ebb; KEY=cosign.key signs it)
	@$(DEV) release -version "$(VERSION)" -registry "$(REGISTRY)" -out "$(DIST)" $(if $(KEY),-key "$(KEY)") $(ARGS)

sign: ## sign the release in dist/ (KEY=cosign.key; COSIGN_PASSWORD has its password)
	@$(DEV) sign -key "$(KEY)" -out "$(DIST)"

samples: ## write the samples' images and manifests to dist-samples/ (REGISTRY=registry.example.com/you)
	@$(DEV) release -samples -version "$(or $(VERSION),v0.0.0-dev)" -registry "$(REGISTRY)" -out dist-samples $(ARGS)

reproduce: ## make the release of HEAD again in another folder, and compare it with dist/ byte by byte
	@again=$$(mktemp -d); trap 'git worktree remove --force "$$again/checkout"; rm -rf "$$again"' EXIT; \
	git worktree add -q --detach "$$again/checkout" HEAD; \
	$(MAKE) --no-print-directory -C "$$again/checkout" release VERSION="$(VERSION)" REGISTRY="$(REGISTRY)" DIST="$$again/dist" KEY="$(if $(KEY),$(abspath $(KEY)))" ARGS="$(ARGS)"; \
	diff -r --no-dereference "$(DIST)" "$$again/dist" && echo "$(DIST) and the second release are the same"

test-release: ## install from dist/ on the dev cluster without Ebb, by manifest and by Helm (PREVIOUS=folder: upgrade from that; GATEWAY=envoy-gateway)
	@$(DEV) up bare $(GATEWAY)
	@eval "$$($(DEV) kubeconfig)"; DIST="$(abspath $(DIST))" PREVIOUS="$(if $(PREVIOUS),$(abspath $(PREVIOUS)))" GATEWAY="$(GATEWAY)" \
		go test -tags release -count=1 -v -timeout 40m ./test/release

.PHONY: test-edge
test-edge: ## run the tests of the edge profile on the dev cluster; `make up` goes back
	@$(DEV) up all edge
	@eval "$$($(DEV) kubeconfig)"; go test -tags edge -count=1 -v -timeout 20m ./test/edge

.PHONY: test-llm
test-llm: ## put a real model on the dev cluster that is up, and scale it by what its server tells
	@$(DEV) sample llm
	@eval "$$($(DEV) kubeconfig)"; go test -tags llm -count=1 -v -timeout 20m ./test/llm

.PHONY: test-kserve
test-kserve: ## reach models by the objects that KServe makes, on the dev cluster that is up
	@eval "$$($(DEV) kubeconfig)"; go test -tags e2e,kserve -count=1 -v -timeout 15m -run TestModelsOfKServe ./test/e2e

.PHONY: test-migration
test-migration: ## move a real Knative Serving to Ebb and back, under load (ARGS='-services 20 -kill'); `make up` goes back
	@$(DEV) up knative
	@eval "$$($(DEV) kubeconfig)"; go run ./test/migration $(ARGS)

## Benchmarks: programs that print JSON lines

bench-%: ## run one of test/bench/*: async, coldstart, scaleup, control, proxy, stray, path, autoscaler, scale, tenants, standby, startup, shim, page, edge, seeds, rollout, nodes (on three nodes; ARGS='-false 1h': what must replace nothing), peer (which installs Knative in place of Ebb, and Ebb again)
	@[ ! -x $(DEV) ] || eval "$$($(DEV) kubeconfig 2>/dev/null || true)"; go run ./test/bench/$* $(ARGS)

.PHONY: simulate
simulate: ## simulate the workloads of sim/workloads in virtual time and write docs/simulation
	go run ./sim -out docs/simulation
	go run ./sim -rollouts 1000 > docs/simulation/rollouts.md

.PHONY: soak
soak: ## disturb several services under load for three minutes (ARGS='-lasts 1h -faults all', on three nodes '-faults nodes'); no request may fail
	@[ ! -x $(DEV) ] || eval "$$($(DEV) kubeconfig 2>/dev/null || true)"; go run ./test/soak $(ARGS)

.PHONY: docs recording
recording: ## record a session on the dev cluster for docs/recording.md, and take its picture (needs asciinema and chromium)
	@dev/site/record.sh $(ARGS)

docs: ## build the site of docs/ into site/, with mkdocs-material
	@dev/site/build.sh

.PHONY: help
help:
	@awk -F ':.*## ' '/^## /{print "\n" substr($$0, 4)} /^[a-z%0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
