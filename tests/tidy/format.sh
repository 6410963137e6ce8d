#!/usr/bin/env bash
# Every C file is as clang-format 14 would write it. Exit 77 (skipped) where the formatter is missing.
set -euo pipefail
cd "$1"
format=$(command -v clang-format-14 || command -v clang-format || true)
[ -n "$format" ] || { echo "no clang-format here"; exit 77; }
"$format" --version | grep -q 'version 14' || { echo "the formatter here is not version 14"; exit 77; }
find runtime kernels scheduler actors examples tests bench -name '*.[ch]' -print0 | xargs -0 "$format" --dry-run -Werror
