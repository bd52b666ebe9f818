#!/usr/bin/env bash
# step.sh NAME COMMAND...: runs the commands of one step of `make check` or `make test`. It says which
# step it is, how long it took the last time it succeeded, and how long the steps after it take.
# EBB_STEPS lists the steps. The times are in the cache folder. A command that fails does not keep the
# later ones from running: one run tells all that is wrong.
set -euo pipefail
name=$1; shift
read -ra steps <<<"${EBB_STEPS:-}" || true
times=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/ebb/durations
minute=60

last() { cat "$times/$1" 2>/dev/null || echo 0; }
pretty() { if [ "$1" -lt 100 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi; }
say() { echo "== $title: $*" >&2; }

title=$name after=0 passed=
for i in "${!steps[@]}"; do
  [ -z "$passed" ] || after=$((after + $(last "${steps[i]}")))
  [ "${steps[i]}" != "$name" ] || { title="$((i + 1))/${#steps[@]} $name" passed=1; }
done
expected=$(last "$name")
plan="not timed on this machine yet"
[ "$expected" = 0 ] || plan="about $(pretty "$expected")"
[ "$after" = 0 ] || plan="$plan, then about $(pretty "$after") for the rest"
say "$plan"

began=$SECONDS
# Says every minute that it goes on, and ends with this script.
(
  trap 'kill "$pause" 2>/dev/null || true; exit' TERM
  while :; do
    sleep "$minute" & pause=$!
    wait "$pause"
    now=$((SECONDS - began))
    if [ "$expected" = 0 ]; then say "$(pretty $now) so far"; else say "$(pretty $now) of about $(pretty "$expected")"; fi
  done
) &
heart=$!
trap 'kill "$heart" 2>/dev/null || true' EXIT

status=0 failed=
for command; do
  [ $# = 1 ] || echo "   $command" >&2
  bash -euo pipefail -c "$command" || { status=$?; failed="$failed"$'\n'"   $command"; }
done
took=$((SECONDS - began))
[ "$status" = 0 ] || { say "failed after $(pretty $took):$failed"; exit "$status"; }
say "done after $(pretty $took)"
{ mkdir -p "$times" && echo "$took" >"$times/$name"; } 2>/dev/null || true # a machine without a cache folder is only not told
