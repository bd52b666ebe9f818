#!/usr/bin/env bash
# Installs promtool into /usr/local/bin, out of Debian's package prometheus. The package itself is not installed, because it would
# start a server.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
chmod 755 . # apt downloads as a user of its own
apt-get -q download prometheus >/dev/null 2>&1 || { apt-get -q update >/dev/null && apt-get -q download prometheus >/dev/null; }
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool >promtool
install -m 755 promtool /usr/local/bin/promtool
