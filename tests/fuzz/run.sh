#!/usr/bin/env bash
# Runs every libFuzzer target of a build for some seconds on a copy of its corpus.
# Usage: tests/fuzz/run.sh BUILD_DIR SECONDS [TARGET...]. Exit 1 when one finds something.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: tests/fuzz/run.sh BUILD_DIR SECONDS [TARGET...]" >&2; exit 2; }
build=$1 seconds=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
status=0
mapfile -t programs < <(find "$build/tests/fuzz" -type f -name 'fuzz_*' -perm -u+x | sort)
[ ${#programs[@]} -gt 0 ] || { echo "no fuzz targets in $build: configure with --preset fuzz" >&2; exit 2; }
for program in "${programs[@]}"; do
    name=$(basename "$program")
    if [ $# -gt 0 ] && ! printf '%s\n' "$@" | grep -qx "${name#fuzz_}"; then
        continue
    fi
    work=$(mktemp -d)
    corpus=$(find "$here" -type d -path "*${name#fuzz_}*corpus*" | head -n 1)
    [ -n "$corpus" ] || corpus=$(find "$here" -type d -name "${name#fuzz_}" | head -n 1)
    mkdir "$work/corpus"
    [ -z "$corpus" ] || cp -r "$corpus/." "$work/corpus/"
    if "$program" -max_total_time="$seconds" -rss_limit_mb=2048 -artifact_prefix="$work/" "$work/corpus" >"$work/log" 2>&1; then
        printf '%-28s %s\n' "$name" "$(grep -oE 'Done [0-9]+ runs in [0-9]+ second' "$work/log" | tail -n 1), no finding"
        rm -rf "$work"
    else
        printf '%-28s FOUND something: %s\n' "$name" "$work"
        tail -n 25 "$work/log"
        status=1
    fi
done
exit $status
