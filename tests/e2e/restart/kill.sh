#!/usr/bin/env bash
# The same with processes and SIGKILL: runs of examples/grpo of which one process is killed at random
# moments, over and over. All steps are done, the audit finds nothing, and the last checkpoint is, bit
# for bit, that of an undisturbed run, unless it is rollouts that die.
# Usage: kill.sh GRPO TROUPE NAME RUNS EVERY_MS   (NAME: policy, reward, reference, rollout, node)
set -euo pipefail
grpo=$1 troupe=$2 name=$3 runs=$4 every=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=$((runs * 1000 + every))
options=(--task add --mode sync --steps 60 --batch 16 --group-size 4 --eval-limit 20 --eval-every 20
    --checkpoint-every 7 --seed 1)

sums() { (cd "$1" && sha256sum model.safetensors optimizer.safetensors); }

# A process of the run that goes by the name, or nothing.
find_process() {
    local pid comm
    for pid in $(pgrep -f -- "--out $1\$"); do
        comm=$(cat "/proc/$pid/comm" 2>/dev/null || true)
        case $comm in "$name"*) echo "$pid"; return ;; esac
    done
}

timeout 120 "$grpo" "${options[@]}" --out "$work/whole" >"$work/log"
"$troupe" audit "$work/whole" >"$work/audit" || { cat "$work/audit"; exit 1; }

kills=0
for ((i = 1; i <= runs; i++)); do
    run=$work/run-$i
    timeout 180 "$grpo" "${options[@]}" --out "$run" >"$work/log-$i" 2>&1 &
    top=$!
    while kill -0 $top 2>/dev/null; do
        delay=$((RANDOM % (2 * every) + 1))
        sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
        pid=$(find_process "$run")
        if [ -n "$pid" ] && kill -9 "$pid" 2>/dev/null; then
            kills=$((kills + 1))
        fi
    done
    wait $top || { echo "run $i failed:"; tail -n 20 "$work/log-$i"; exit 1; }
    "$troupe" audit "$run" >"$work/audit" || { echo "the audit of run $i:"; cat "$work/audit"; exit 1; }
    if [ ! -d "$run/checkpoint-60" ]; then
        echo "run $i did not reach its last checkpoint"
        exit 1
    fi
    if [ "$name" != rollout ] && ! diff <(sums "$work/whole/checkpoint-60") <(sums "$run/checkpoint-60"); then
        echo "run $i, disturbed, differs from the undisturbed one"
        exit 1
    fi
    rm -rf "$run"
done
echo "$kills kills of $name in $runs runs, all steps done, audits clean"
[ "$kills" -gt 0 ]
