#!/usr/bin/env bash
# The README's job from a fresh clone on Debian 12 (root or sudo): installs what is missing, builds, trains
# two-digit addition asynchronously for about two minutes, audits the run's records.
#   examples/quickstart.sh [--out DIR] [grpo options...]
set -euo pipefail
cd "$(dirname "$0")/.."
out=run-quickstart
if [ "${1:-}" = "--out" ]; then
    out=${2:?--out needs a directory}
    shift 2
fi
if [ -e "$out" ]; then
    out=$out-$(date +%Y%m%d-%H%M%S)
fi

tests/deps.sh --build-only
echo "building (a minute or two; build/quickstart.log has the details)"
mkdir -p build
if ! { cmake --preset release && cmake --build --preset release -j "$(nproc)" --target grpo troupe; } >build/quickstart.log 2>&1; then
    tail -n 40 build/quickstart.log
    echo "the build failed; the whole log is build/quickstart.log" >&2
    exit 1
fi
echo "built: build/release/examples/grpo/grpo, build/release/actors/troupe"
build/release/examples/grpo/grpo --task add --out "$out" "$@"
build/release/actors/troupe audit "$out"
