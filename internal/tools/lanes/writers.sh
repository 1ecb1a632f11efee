#!/usr/bin/env bash
# Compares larder's readers with the writers and readers of the formats themselves, where either changed.
#
#   writers.sh PYTHON            runs the comparison if the sources differ from writers.sum, beside this file
#   writers.sh PYTHON always     runs it, and writes writers.sum when it passes
#
# make nightly runs all of it anyway. CI runs it only for a change of these sources, because the packages of the formats
# take minutes to install. A change that ran it commits the new writers.sum, and saves CI these minutes.
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=$1
sum=internal/tools/lanes/writers.sum
compared='OfOtherWriters|FormatsOwnReaders|SoundIsRead|ValuesOfLMDB' # Go tests
tests=(python/tests/test_e2e_{records,tables,packed,properties,stored_ops,blocks,pack,pack_records}.py)
sources=(internal/source internal/pack internal/record internal/tools/python/formats.txt python/tests/golden
  'python/tests/*_files.py' 'python/tests/*_told.py' 'python/tests/packs_re*.py')

digest=$({ git ls-files -co --exclude-standard -- "${sources[@]}" | grep -v '_test\.go$' &&
  grep -lE "^func Test.*($compared)" internal/source/packed/*_test.go && printf '%s\n' "${tests[@]}"; } |
  LC_ALL=C sort -u | xargs -d '\n' sha256sum | sha256sum | cut -d ' ' -f 1)
if [ "${2-}" != always ] && [ "$digest" = "$(cat "$sum" 2>/dev/null)" ]; then
  echo "the readers of packed files are those that were compared with the formats' own ($sum)"
  exit 0
fi
echo "comparing the readers of packed files with the formats' own, in .venv-formats"
internal/tools/setup.sh "${VENV:-.venv}" writers
LARDER_REQUIRE_FORMATS=1 LARDER_LANE=nightly "$python" -m pytest -q -n 2 --dist worksteal -m nightly -k 'not https' \
  "${tests[@]}"
LARDER_REQUIRE_FORMATS=1 LARDER_LANE=nightly go test -tags "${TAGS-turbo}" -count=1 -timeout 40m \
  -run "$compared" ./internal/source/packed
[ "${2-}" != always ] || echo "$digest" >"$sum"
