#!/usr/bin/env bash
# record.sh: records session.sh on the dev cluster as docs/recording.cast, and takes its picture.
# --picture: only takes the picture.
set -euo pipefail
cd "$(dirname "$0")/../.."
cast=docs/recording.cast picture=docs/images/recording.png
need() { command -v "$1" >/dev/null || { echo "$1 is needed: apt-get install $1" >&2; exit 1; }; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

record() {
  need asciinema
  eval "$(dev/ctl.sh kubeconfig)"
  kubectl config view --raw >"$work/kubeconfig"
  export KUBECONFIG=$work/kubeconfig CURL_HOME=$work SESSION_STATUS=$work/status
  kubectl create namespace demo
  trap 'kubectl delete namespace demo --wait=false; rm -rf "$work"' EXIT
  kubectl config set-context --current --namespace=demo >/dev/null
  gateway=$(kubectl -n knative-serving get gateway ebb-external -o jsonpath='{.status.addresses[0].value}')
  printf 'silent\nfail\nconnect-to = "::%s:80"\n' "$gateway" >"$work/.curlrc"
  asciinema rec -q --overwrite --cols 104 --rows 26 -i 1.5 -t "Ebb in a minute" -c 'dev/site/session.sh; echo $? >"$SESSION_STATUS"' "$work/cast"
  [[ $(<"$work/status") = 0 ]] || { echo "the session failed:" >&2; asciinema cat "$work/cast" >&2; exit 1; }
  # The header also has the time and the shell of whoever recorded.
  python3 - "$work/cast" >"$work/clean" <<'EOF'
import json, sys
header, *events = open(sys.argv[1], encoding="utf-8")
header = json.loads(header)
print(json.dumps({key: header[key] for key in ("version", "width", "height", "idle_time_limit", "title")}))
print("".join(events), end="")
EOF
  ! grep -n -e "$(hostname)" -e "$PWD" -e "$HOME/" "$work/clean" || { echo "the session shows names of this machine" >&2; exit 1; }
  cp "$work/clean" "$cast"
}

# take_picture shows what the player shows before it plays.
take_picture() {
  need chromium
  player=$(dev/site/build.sh --tools)/package/dist/bundle
  python3 - "$cast" "file://$player" "$(grep -o 'npt:[0-9:]*' dev/site/hooks.py)" >"$work/page.html" <<'EOF'
import json, sys
assets, poster = sys.argv[2:]
cast = json.dumps({"data": open(sys.argv[1], encoding="utf-8").read()}).replace("</", "<\\/")
print(f"""<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="{assets}/asciinema-player.css">
<style>body{{margin:0}}</style><div id="player"></div><script src="{assets}/asciinema-player.min.js"></script>
<script>AsciinemaPlayer.create({cast}, document.getElementById("player"), {{poster: "{poster}", fit: "width"}})</script>""")
EOF
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files --window-size=940,562 \
    --virtual-time-budget=10000 --screenshot="$picture" "file://$work/page.html" 2>/dev/null
}

[[ ${1-} = --picture ]] || record
take_picture
echo "$cast and $picture are written: look at them"
