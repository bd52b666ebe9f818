#!/usr/bin/env bash
# build.sh: builds the site with mkdocs-material into site/, and fails at a link that leads nowhere.
# Its tools are kept in the cache folder, by what they are. --check: where they cannot be installed,
# nothing is built, and that is a failure only if CI=true. --tools: only prints their folder.
set -euo pipefail
cd "$(dirname "$0")"
mermaid=11.17.2 player=3.18.0
tools="${XDG_CACHE_HOME:-$HOME/.cache}/ebb/site-$(sha256sum requirements.txt build.sh | sha256sum | cut -c1-12)"

install_tools() {
  rm -rf "$tools"
  python3 -m venv "$tools" || { echo "python3-venv is needed: apt-get install python3-venv" >&2; return 1; }
  "$tools/bin/pip" -q --disable-pip-version-check install -r requirements.txt || return
  (cd "$tools" && npm pack -s "mermaid@$mermaid" "asciinema-player@$player" >/dev/null &&
    tar xzf "mermaid-$mermaid.tgz" package/dist/mermaid.min.js && tar xzf "asciinema-player-$player.tgz" package/dist/bundle) || return
  touch "$tools/done"
}
if [[ ! -e $tools/done ]] && ! install_tools; then
  [[ ${1-} != --check || ${CI-} == true ]] && exit 1
  echo "mkdocs could not be installed: the site is not built, and the links of its pages are not checked"
  exit 0
fi
[[ ${1-} != --tools ]] || { echo "$tools"; exit 0; }
# Not --quiet: that hides the warnings, of which --strict makes errors.
log=$(EBB_SITE_ASSETS="$tools/package/dist" NO_MKDOCS_2_WARNING=1 "$tools/bin/mkdocs" build --strict --clean -f mkdocs.yml 2>&1) ||
  { grep -v '^INFO' <<<"$log" >&2; exit 1; }
echo "site/index.html: $(find ../../site -name '*.html' | wc -l) pages"
