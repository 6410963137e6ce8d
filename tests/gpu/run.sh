#!/usr/bin/env bash
# One command for a host with an NVIDIA GPU, bare or not: builds what is missing, runs the conformance suite of
# devices, `troupe model verify` on the three models of tests/data/hf, and a memory checker, all on that GPU.
#
#   tests/gpu/run.sh [--debs DIR] [--build DIR] [--device NAME] [--out DIR] [--quick]
#
#   --debs DIR     Debian packages for a host without network: unpacked below /opt/deps, never over the system.
#                  Gathered elsewhere with: apt-get download libjansson4 libjansson-dev libpcre2-8-0 libpcre2-dev
#                  libxxhash0 libxxhash-dev libutf8proc2 libutf8proc-dev libcmocka0 libcmocka-dev libjemalloc2
#                  libjemalloc-dev libmsgpackc2 libmsgpack-dev pkgconf pkgconf-bin libpkgconf3
#                  Without it they are installed by tests/deps.sh where something is missing.
#   --build DIR    a build tree made elsewhere, used as it is; else build/gpu is made here (needs nvcc)
#   --device NAME  cuda (default), cuda:1, cuda:GPU-...
#   --out DIR      where the logs and table.md go (default: build/gpu-results)
#   --quick        without the memory checker
#
# Prints a table; exit 1 when a row has failed, 2 when nothing could be run. Changes no setting of a GPU.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
export NCCL_NVLS_ENABLE=0
debs="" build="" device=cuda out=build/gpu-results quick=0
while [ $# -gt 0 ]; do
    case $1 in
        --debs) debs=${2:?}; shift ;;
        --build) build=${2:?}; shift ;;
        --device) device=${2:?}; shift ;;
        --out) out=${2:?}; shift ;;
        --quick) quick=1 ;;
        *) sed -n '2,20p' "$0" >&2; exit 2 ;;
    esac
    shift
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
rows=() failed=0

die() { echo "tests/gpu/run.sh: $*" >&2; exit 2; }

# step NAME LIMIT_S COMMAND... : runs it, keeps its output, adds a row. The row shows the output's last line.
step() {
    local name=$1 limit=$2 log began result=passed
    shift 2
    log=$out/$(tr -c 'a-zA-Z0-9\n' _ <<<"$name").log
    began=$(date +%s.%N)
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    local code=$?
    [ $code -eq 0 ] || { result="FAILED ($code)"; failed=$((failed + 1)); }
    rows+=("| $name | $result | $(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }') | $(tail -n 1 "$log" | tr -d '|' | cut -c1-90) |")
    [ $code -eq 0 ] || { echo "--- $name: exit code $code"; grep -E 'ERROR|FAILED|Invalid|error' "$log" | head -n 20; tail -n 15 "$log"; }
}

# same_numbers TROUPE MODEL DEVICE : two runs print the same, digit by digit.
same_numbers() {
    local first second
    first=$("$1" model verify "$2" --device "$3" --each) && second=$("$1" model verify "$2" --device "$3" --each) || return 1
    [ "$first" = "$second" ] || { diff <(echo "$first") <(echo "$second"); return 1; }
    echo "$(wc -l <<<"$first") lines agree"
}

# same_ids TROUPE MODEL DEVICE : what the GPU draws is what the CPU draws.
same_ids() {
    local draw=(--prompt-ids "1,2,3,4,5" --max-new 40 --temperature 0.9 --top-p 0.95 --seed 7) here there
    here=$("$1" model generate "$2" "${draw[@]}") && there=$("$1" model generate "$2" "${draw[@]}" --device "$3") || return 1
    [ "$here" = "$there" ] || { echo "CPU: $here"; echo "GPU: $there"; return 1; }
    echo "the same $(tr , "\n" <<<"$here" | wc -l) ids"
}
export -f same_numbers same_ids

# --- libraries and build -------------------------------------------------------------------------------------

if [ -n "$debs" ]; then
    ls "$debs"/*.deb >/dev/null 2>&1 || die "no *.deb in $debs"
    for deb in "$debs"/*.deb; do dpkg -x "$deb" /opt/deps || die "cannot unpack $deb"; done
    libs=/opt/deps/usr/lib/x86_64-linux-gnu
    export LD_LIBRARY_PATH=$libs:/opt/deps/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export PATH=$PATH:/opt/deps/usr/bin CMAKE_PREFIX_PATH=/opt/deps/usr
    export PKG_CONFIG_PATH=$libs/pkgconfig PKG_CONFIG_SYSROOT_DIR=/opt/deps CMAKE_LIBRARY_PATH=$libs
    export CPATH=/opt/deps/usr/include LIBRARY_PATH=$libs
elif [ -z "$build" ]; then
    tests/deps.sh --build-only || die "give the packages in a folder with --debs"
fi
if [ -z "$build" ]; then
    build=build/gpu
    command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || die "no nvcc here, and no --build"
    generator=(); command -v ninja >/dev/null && generator=(-G Ninja)
    step "configure" 300 cmake -S . -B $build "${generator[@]}"
    step "build" 1200 cmake --build $build -j "$(nproc)" --target troupe test_conform_device troupe_cuda
fi
troupe=$build/actors/troupe conform=$build/tests/conform/device/test_conform_device
if ! [ -x "$troupe" ] || ! [ -x "$conform" ]; then
    printf '%s\n' "${rows[@]}"
    die "there is no $troupe or no $conform"
fi
export TROUPE_DEVICE_PATH
TROUPE_DEVICE_PATH=$(cd "$build/kernels/cuda" && pwd) || die "$build has no kernels/cuda"

# --- on the GPU ----------------------------------------------------------------------------------------------

step "conformance, plain CPU" 120 "$conform" cpu:plain
step "conformance, $device" 240 "$conform" "$device"
step "a device that fails" 60 "$conform" "$device" failure
for model in tests/data/hf/*/; do
    name=$(basename "$model")
    step "model verify $name" 120 "$troupe" model verify "$model" --device "$device"
    step "model verify $name, twice" 120 bash -c "same_numbers '$troupe' '$model' '$device'"
    step "model generate $name, as the CPU" 120 bash -c "same_ids '$troupe' '$model' '$device'"
done
checker=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ $quick -eq 0 ] && [ -n "$checker" ]; then
    # A request for too much memory is part of the suite, so calls that report an error are no finding.
    step "memcheck, conformance" 300 "$checker" --tool memcheck --report-api-errors no \
        --error-exitcode 9 "$conform" "$device"
    step "racecheck, some shapes of each operation" 300 "$checker" --tool racecheck --error-exitcode 9 \
        "$conform" "$device" small
    step "memcheck, model verify llama-tiny" 300 "$checker" --tool memcheck --error-exitcode 9 \
        "$troupe" model verify tests/data/hf/llama-tiny --device "$device"
fi

# --- what came of it -----------------------------------------------------------------------------------------

{
    echo "$(nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader 2>/dev/null | head -n 1), $(date -u +%F), device $device"
    echo
    echo "| what | result | s | last line |"
    echo "| --- | --- | --- | --- |"
    printf '%s\n' "${rows[@]}"
    for model in tests/data/hf/*/; do
        printf '\n%s\n\n```\n' "$(basename "$model")"
        cat "$out/model_verify_$(basename "$model" | tr -c 'a-zA-Z0-9\n' _).log"
        echo '```'
    done
} >"$out/table.md"
cat "$out/table.md"
echo "$((${#rows[@]} - failed)) passed, $failed failed"
[ $failed -eq 0 ]
