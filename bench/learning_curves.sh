#!/usr/bin/env bash
# Held-out accuracy of the addition task over steps: synchronous, and asynchronous at hard bounds 1, 2, 4 and 8, three
# seeds each, every run audited. A quarter of an hour on two idle cores; not a test.
# Usage: bench/learning_curves.sh BUILD_DIR OUT_DIR [STEPS] [SEEDS...]
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: bench/learning_curves.sh BUILD_DIR OUT_DIR [STEPS] [SEEDS...]" >&2; exit 2; }
grpo=$1/examples/grpo/grpo troupe=$1/actors/troupe out=$2 steps=${3:-400}
shift 2
[ $# -gt 0 ] && shift
seeds=("$@")
[ ${#seeds[@]} -gt 0 ] || seeds=(1 2 3)
mkdir -p "$out"

# field NAME: one column of metrics.jsonl, null left out
field() { grep -o "\"$1\":[^,}]*" "$2" | cut -d: -f2 | grep -v null || true; }

printf '%-10s %4s  %-8s %-8s %-7s %-7s %-8s %-7s %s\n' mode seed accuracy seconds lag.mean lag.max wasted audit 'accuracy every 50 steps'
for mode in sync 1 2 4 8; do
    for seed in "${seeds[@]}"; do
        run=$out/$mode-$seed
        rm -rf "$run"
        options=(--mode sync)
        [ "$mode" = sync ] || options=(--mode async --max-lag "$mode")
        "$grpo" --task add --steps "$steps" --seed "$seed" "${options[@]}" --eval-every 50 --checkpoint-every 100 --keep 1 \
            --out "$run" >"$run.log" 2>&1 || { tail -n 3 "$run.log"; exit 1; }
        audit=clean
        "$troupe" audit "$run" >"$run.audit" 2>&1 || audit=VIOLATED
        m=$run/metrics.jsonl
        printf '%-10s %4s  %-8.3f %-8.1f %-7.2f %-7s %-8s %-7s %s\n' "$([ "$mode" = sync ] && echo sync || echo "max_lag $mode")" "$seed" \
            "$(field accuracy "$m" | tail -n 1)" "$(field wall_s "$m" | tail -n 1)" \
            "$(field lag_head_mean "$m" | awk '{ s += $1 } END { print s / NR }')" \
            "$(field lag_head_max "$m" | sort -n | tail -n 1)" "$(field wasted_tokens "$m" | tail -n 1)" "$audit" \
            "$(field accuracy "$m" | awk '{ printf "%.2f ", $1 }')"
    done
done
