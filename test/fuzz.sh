#!/usr/bin/env bash
# fuzz.sh [-some N] [-lasts 1m] [NAME...]: runs the fuzz targets, all of them or those with these
# names, one after another. With -some it runs N targets, others after each commit. It prints a JSON
# line for each, and stops at the first that fails; Go then says how to repeat the failure.
set -euo pipefail
cd "$(dirname "$0")/.."
some=0 lasts=1m
while [[ ${1:-} == -* ]]; do
  case $1 in
    -some) some=$2 ;;
    -lasts) lasts=$2 ;;
    *) echo "fuzz.sh: unknown flag $1" >&2; exit 2 ;;
  esac
  shift 2
done

mapfile -t targets < <(grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed -E 's#^\./(.*)/[^/]+:[0-9]+:func (.*)#\1 \2#' | LC_ALL=C sort)
if (($# > 0)); then
  pattern="$(IFS='|'; echo "$*")"
  mapfile -t targets < <(printf '%s\n' "${targets[@]}" | grep -E " ($pattern)\$")
  ((${#targets[@]} > 0)) || { echo "fuzz.sh: there is no target $*" >&2; exit 2; }
fi
first=0 n=${#targets[@]}
if ((some > 0 && some < n)); then
  first=$(($(git rev-list --count HEAD) * some % n)) n=$some
fi
for ((i = 0; i < n; i++)); do
  read -r package target <<<"${targets[(first + i) % ${#targets[@]}]}"
  log=$(mktemp)
  if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$lasts" "./$package" >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
  execs=$(grep -oE 'execs: [0-9]+' "$log" | tail -1 | cut -d' ' -f2)
  echo "{\"bench\":\"fuzz\",\"package\":\"$package\",\"target\":\"$target\",\"executions\":${execs:-0},\"lasted\":\"$lasts\"}"
  rm -f "$log"
done
