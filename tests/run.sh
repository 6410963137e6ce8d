#!/usr/bin/env bash
# The test command: installs what is missing, builds, runs every test that needs no GPU.
#   tests/run.sh          the whole of it within twelve minutes on two cores
#   tests/run.sh --full   also the sanitizer matrix, the second compiler, long fuzzing, 10,000 seeds
# The last line is "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")/.."
full=0
for arg in "$@"; do
    case $arg in
        --full) full=1 ;;
        *) echo "usage: tests/run.sh [--full]" >&2; exit 2 ;;
    esac
done

tests/deps.sh
jobs=$(nproc)
passed=0 failed=0 skipped=0

# build PRESET: configures and builds build/PRESET.
build() {
    cmake --preset "$1" >"build-$1.log" 2>&1 || { tail -n 30 "build-$1.log"; return 1; }
    cmake --build --preset "$1" -j "$jobs" >>"build-$1.log" 2>&1 || { grep -E 'error|FAILED|warning' "build-$1.log" | head -n 40; return 1; }
    rm -f "build-$1.log"
    echo "built: $1"
}

# suite PRESET [ctest options...]: runs ctest and adds up what it says.
suite() {
    local preset=$1 log
    shift
    log=build/$preset/ctest.log
    ctest --test-dir "build/$preset" --output-on-failure -j "$jobs" --no-tests=error "$@" 2>&1 | tee "$log" | grep -vE '^ *(Start|[0-9]+/[0-9]+ Test +#[0-9]+:.* Passed)' || true
    local s f
    f=$(grep -cE '^ *[0-9]+/[0-9]+ Test.*\*\*\*(Failed|Timeout|Exception|Not Run)' "$log" || true)
    s=$(grep -cE '^ *[0-9]+/[0-9]+ Test.*\*\*\*Skipped' "$log" || true)
    passed=$((passed + $(grep -cE '^ *[0-9]+/[0-9]+ Test.* Passed ' "$log" || true)))
    failed=$((failed + f))
    skipped=$((skipped + s))
    grep -qE 'tests passed|tests failed' "$log" || failed=$((failed + 1))
}

# step PRESET [ctest options...]: builds and tests; a build that fails is a failure, not a silence.
step() {
    local preset=$1
    shift
    if build "$preset"; then
        suite "$preset" "$@"
    else
        failed=$((failed + 1))
    fi
}

# check WHAT COMMAND...: one pass or fail by the exit code.
check() {
    local what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "failed: $what"
        failed=$((failed + 1))
    fi
}

mkdir -p build
if ! command -v nvcc >/dev/null; then
    echo "no nvcc here: the CUDA parts are not built"
fi
step release
if [ $full -eq 1 ]; then
    step asan
    step tsan -L tsan
    step clang
    check "a minute of kills in the store" build/release/tests/unit/store/test_store_kill 60
    check "fuzz build" build fuzz
    check "fuzzing" tests/fuzz/run.sh build/fuzz 60
    check "10,000 seeds" build/release/actors/troupe sim --seeds 1..10000
else
    step asan -LE "slow|e2e"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
