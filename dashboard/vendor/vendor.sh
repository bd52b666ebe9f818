#!/usr/bin/env bash
# Copies the page's libraries, as npm has them, to dashboard/page/assets/vendor. package-lock.json fixes their content.
#   dashboard/vendor/vendor.sh           writes the files
#   dashboard/vendor/vendor.sh --check   fails when what is there differs; writes nothing; does nothing without npm
set -euo pipefail
cd "$(dirname "$0")"

to=$PWD/../page/assets/vendor
check=false
[ "${1:-}" = --check ] && check=true

if $check; then
  if ! command -v npm >/dev/null; then
    [ "${CI:-}" = true ] && { echo "npm is not installed, so the page's libraries cannot be checked"; exit 1; }
    echo "npm is not installed: the page's libraries are not compared with their packages"
    exit 0
  fi
  # The same files were found to fit before: packages do not change.
  state=$(cat package.json package-lock.json vendor.sh; cd "$to"; find . -type f | LC_ALL=C sort | xargs sha256sum)
  stamp=$(go env GOCACHE)/ebb-vendored-$(sha256sum <<<"$state" | cut -c1-40)
  [ -e "$stamp" ] && exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp package.json package-lock.json "$work"
(cd "$work" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null)

out=$work/out
mkdir "$out"
of=$work/node_modules
cp "$of/preact/dist/preact.mjs" "$of/preact/hooks/dist/hooks.mjs" "$out"
cp "$of/htm/dist/htm.mjs" "$out"
cp "$of/uplot/dist/uPlot.iife.min.js" "$of/uplot/dist/uPlot.min.css" "$out"
for package in preact htm uplot; do
  cp "$of/$package/LICENSE" "$out/LICENSE.$package.txt"
done
chmod 644 "$out"/*

if $check; then
  diff -rq "$out" "$to" || { echo "the page's libraries are not those of their packages: run dashboard/vendor/vendor.sh"; exit 1; }
  touch "$stamp"
  exit 0
fi
rm -rf "$to"
cp -r "$out" "$to"
