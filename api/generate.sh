#!/usr/bin/env bash
# Generates the deepcopy functions and the clients of api/, and the definitions in config/crd/.
#   api/generate.sh           writes them
#   api/generate.sh --check   fails when what is there is not what would be written; writes nothing
set -euo pipefail
cd "$(dirname "$0")/.."

module=ebb.dev/ebb
groups=(serving/v1 serving/v1beta1 autoscaling/v1alpha1 networking/v1alpha1)
header=$PWD/api/boilerplate.go.txt

packages=()
inputs=
for group in "${groups[@]}"; do
  packages+=("$module/api/$group")
  inputs+=${inputs:+,}$group
done

check=false
[ "${1:-}" = --check ] && check=true

# The same inputs and outputs were found to fit before: what is generated depends on nothing else.
if $check; then
  state=$(go version; cat go.mod go.sum dev/tools/go.{mod,sum}; find api config/crd -type f | LC_ALL=C sort | xargs sha256sum)
  stamp=$(go env GOCACHE)/ebb-generated-$(sha256sum <<<"$state" | cut -c1-40)
  [ -e "$stamp" ] && exit 0
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The generators name their files after the package's folder, so the deepcopy files go through the tree: the old
# ones are kept aside and put back when only a check was asked for.
for group in "${groups[@]}"; do
  mkdir -p "$out/old/$group"
  cp "api/$group/zz_generated.deepcopy.go" "$out/old/$group/" 2>/dev/null || true
done

go tool -modfile=dev/tools/go.mod deepcopy-gen --go-header-file "$header" --output-file zz_generated.deepcopy.go "${packages[@]}"
mkdir "$out/crd"
go tool -modfile=dev/tools/go.mod client-gen --go-header-file "$header" --output-dir "$out/client" --output-pkg "$module/api/client" \
  --clientset-name versioned --input-base "$module/api" --input "$inputs" &
go tool -modfile=dev/tools/go.mod lister-gen --go-header-file "$header" --output-dir "$out/client/listers" \
  --output-pkg "$module/api/client/listers" "${packages[@]}" &
go tool -modfile=dev/tools/go.mod informer-gen --go-header-file "$header" --output-dir "$out/client/informers" \
  --output-pkg "$module/api/client/informers" --versioned-clientset-package "$module/api/client/versioned" \
  --listers-package "$module/api/client/listers" "${packages[@]}" &
go run ./api/crds "$out/crd" &
for job in $(jobs -p); do wait "$job"; done
gofmt -w "$out/client"

if ! $check; then
  rm -rf api/client
  cp -r "$out/client" api/client
  rm -f config/crd/*.knative.dev.yaml
  cp "$out"/crd/* config/crd/
  exit 0
fi

stale=0
for group in "${groups[@]}"; do
  file=api/$group/zz_generated.deepcopy.go
  if ! cmp -s "$out/old/$group/zz_generated.deepcopy.go" "$file"; then
    echo "$file is out of date: run api/generate.sh"
    stale=1
    if [ -f "$out/old/$group/zz_generated.deepcopy.go" ]; then
      cp "$out/old/$group/zz_generated.deepcopy.go" "$file"
    else
      rm -f "$file"
    fi
  fi
done
if ! diff -rq "$out/client" api/client; then
  echo "api/client is out of date: run api/generate.sh"
  stale=1
fi
for file in "$out"/crd/*; do
  if ! diff -q "$file" "config/crd/${file##*/}"; then
    echo "config/crd/${file##*/} is out of date: run api/generate.sh"
    stale=1
  fi
done
[ $stale = 0 ] && touch "$stamp"
exit $stale
