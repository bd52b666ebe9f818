#!/usr/bin/env bash
# Builds the program behind `make up` and runs it in the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "error: $*" >&2; exit 1; }
command -v go >/dev/null || fail "Go is missing: install Go 1.26 and have its bin folder on the PATH"
case "${1-}" in up | down | node)
  [ "$(id -u)" = 0 ] || fail "this needs root, because it makes network interfaces, mounts and cgroups: run it as root, for example with sudo" ;;
esac
mkdir -p .dev/bin
# With the flags of internal/build, so that Go's standard library is compiled once for all programs.
CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off go build -C dev/ctl -trimpath -buildvcs=false -o "$PWD/.dev/bin/ctl" . ||
  fail "dev/ctl does not build; if the disk is full, \`go clean -cache\` frees Go's build cache"
exec .dev/bin/ctl "$@"
