#!/usr/bin/env bash
# Checks the protocol buffers: style, compatibility, and that the generated Go code is up to date.
#
#   internal/tools/proto.sh TOOLS
#
# Compatibility is checked against the last commit on main before this tree: the commit where this branch left main, or the
# parent of HEAD where HEAD is that commit. BASE names another commit. A clone of depth 1 and a folder without git have no
# earlier commit; the script reports that and checks the rest.
set -euo pipefail
tools=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
export PATH=$tools:$tools/python/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "proto: $*"; }

# commit NAME prints the commit that a ref names; it fails where there is none.
commit() { git rev-parse -q --verify "$1^{commit}" 2>/dev/null; }

# base prints the commit to compare with, or nothing.
base() {
  local main= ref head
  if [ -n "${BASE-}" ]; then
    commit "$BASE" || { say "there is no commit $BASE" >&2; return 2; }
    return
  fi
  head=$(commit HEAD) || return 0
  for ref in refs/remotes/origin/main refs/heads/main; do
    main=$(commit "$ref") && break
  done
  [ -n "$main" ] || main=$head
  main=$(git merge-base "$main" "$head") || return 0 # a shallow clone may not hold it
  [ "$main" != "$head" ] || main=$(commit "$head~1") || return 0
  echo "$main"
}

(cd proto && buf lint)

against=$(base)
if [ -z "$against" ]; then
  say "no earlier commit is here: compatibility is not checked"
elif ! git cat-file -e "$against:proto/buf.yaml" 2>/dev/null; then
  say "$against has no proto/buf.yaml: compatibility is not checked"
else
  mkdir "$work/before"
  git archive "$against" proto | tar -x -C "$work/before"
  (cd proto && buf breaking --against "$work/before/proto")
  say "compatible with $(git log -1 --format='%h (%s)' "$against")"
fi

cp -r proto "$work/now"
find "$work/now" -name '*.pb.go' -delete
(cd "$work/now" && buf generate)
diff -r proto "$work/now" || { say "the generated code is out of date: make generate"; exit 1; }
