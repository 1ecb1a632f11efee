#!/bin/sh
# Runs the C code of internal/prep under AddressSanitizer: drawn images that are damaged at random, decoded whole and by parts,
# strictly and not, and the kernels on random boxes against pages that nobody may touch. Needs gcc's libasan; takes minutes.
# CASES sets the number of random cases a test (default 3000).
set -eu
cd "$(dirname "$0")/../../.."
export LARDER_KERNEL_CASES="${CASES:-3000}" ASAN_OPTIONS="detect_leaks=0:halt_on_error=1"
exec "${GO:-go}" test -asan -count=1 -timeout 60m -tags "${TAGS-turbo}" \
	-run 'Damaged|Kernel|Region|Golden|Broken|Bombs|Tiny|Widest|NoArea|Animated|Corrupt|Guarded|Finish|Compact|Planes|Chroma' ./internal/prep
