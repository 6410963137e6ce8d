#!/usr/bin/env bash
# Runs whose actors end at random moments and are made anew. All steps are done, the audit finds
# nothing; in sync mode, where only rollouts that live decide what is sampled, the last checkpoint's
# weights and optimiser are, bit for bit, those of an undisturbed run.
# Usage: restart.sh RESTART_RUN TROUPE ROLE[,ROLE...] RUNS [options of grpo...]
set -euo pipefail
program=$1 troupe=$2 roles=$3 runs=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(--task add --mode sync --steps 40 --batch 16 --group-size 4 --eval-limit 20 --eval-every 10
    --checkpoint-every 7 --seed 3 "$@")
mode=sync
[[ " $* " == *" --mode async "* ]] && mode=async

# The state of a checkpoint has counted each sample that it covers, no more and no fewer.
counts() {
    local state=$1/checkpoint-40/train_state.json counted bytes
    counted=$(sed -n 's/^ *"sampled_samples": \([0-9]*\).*/\1/p' "$state")
    bytes=$(sed -n 's/^ *"samples_bytes": \([0-9]*\).*/\1/p' "$state")
    [ "$(head -c "$bytes" "$1/samples.jsonl" | wc -l)" -eq "$counted" ]
}

sums() { (cd "$1" && sha256sum model.safetensors optimizer.safetensors); }

"$program" "$roles" 0 1 "${options[@]}" --out "$work/whole" >"$work/log"
"$troupe" audit "$work/whole" >"$work/audit" || { cat "$work/audit"; exit 1; }

deaths=0
for ((i = 1; i <= runs; i++)); do
    run=$work/run-$i
    # Every few steps, then every few dozen; who goes back to a checkpoint each time needs longer.
    every=$((i % 2 == 1 ? 60 : 200))
    [[ " $* " == *" --mirror off "* ]] && every=250
    timeout 120 "$program" "$roles" $every "$i" "${options[@]}" --out "$run" >"$work/log-$i" 2>&1 || {
        echo "run $i failed:"
        tail -n 20 "$work/log-$i"
        exit 1
    }
    if [ ! -d "$run/checkpoint-40" ]; then
        echo "run $i did not reach its last checkpoint"
        exit 1
    fi
    if ! "$troupe" audit "$run" >"$work/audit"; then
        echo "the audit of run $i:"
        cat "$work/audit"
        exit 1
    fi
    if [ $mode = sync ] && ! diff <(sums "$work/whole/checkpoint-40") <(sums "$run/checkpoint-40"); then
        echo "run $i, disturbed, differs from the undisturbed one"
        exit 1
    fi
    counts "$run" || { echo "run $i has samples that its state has not counted"; exit 1; }
    n=$(grep -c "ended by the test" "$work/log-$i" || true)
    deaths=$((deaths + n))
    rm -rf "$run"
done
echo "$mode: $deaths deaths of $roles in $runs runs, all steps done, audits clean"
[ "$deaths" -gt 0 ]
