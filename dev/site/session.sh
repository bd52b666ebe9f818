#!/usr/bin/env bash
# session.sh: what record.sh records. It types commands and runs them.
set -euo pipefail

# run types a command, runs it, and gives the reader a moment.
run() {
  printf '\e[32m$\e[0m '
  for ((i = 0; i < ${#1}; i++)); do printf '%s' "${1:i:1}"; sleep 0.02; done
  echo
  [[ $1 = \#* ]] || eval "${2:-$1}"
  echo
  sleep "${rest:-1}"
}

# apply is `kubectl apply` without its warning about security contexts that the samples leave open.
apply() { kubectl apply -f "$1" 2> >(grep -v ^Warning >&2); }

# watch_pods is `kubectl get pods --watch`, ended when there is none.
watch_pods() {
  kubectl get pods --watch &
  local watch=$!
  kubectl wait --for=delete pod -l serving.knative.dev/service=hello-go --timeout=4m >/dev/null
  sleep 1
  kill "$watch"
  wait "$watch" 2>/dev/null || echo ^C
}

clear
run '# A Service, from a short manifest.'
run 'kubectl apply -f samples/hello-go/service.yaml' 'apply samples/hello-go/service.yaml'
run 'kubectl wait --for=condition=Ready ksvc/hello-go'
run 'kubectl get ksvc'
run "curl -w '%{time_total} s\n' http://hello-go.demo.ebb.test"
run '# Nobody calls for a minute.'
run 'kubectl get pods --watch' watch_pods
run 'kubectl ebb explain hello-go | head -2'
run '# The next request starts a pod, and waits for it.'
rest=6 # until the account of the cold start is closed
run "curl -w '%{time_total} s\n' http://hello-go.demo.ebb.test"
rest=3
run 'kubectl ebb coldstarts hello-go'
rest=1
run '# Two revisions, and half of the requests to each.'
run 'kubectl apply -f samples/traffic-split/1-blue.yaml' 'apply samples/traffic-split/1-blue.yaml'
run 'kubectl wait --for=condition=Ready ksvc/colours'
run 'kubectl apply -f samples/traffic-split/2-half.yaml' 'apply samples/traffic-split/2-half.yaml'
run 'kubectl wait --for=condition=Ready ksvc/colours'
rest=3
run 'for i in 1 2 3 4 5 6; do curl http://colours.demo.ebb.test; done'
