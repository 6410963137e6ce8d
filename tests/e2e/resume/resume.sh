#!/usr/bin/env bash
# Kills a whole run with SIGKILL at random moments and resumes it until it is done.
#   sync:  the last checkpoint's weights and optimiser are, bit for bit, those of an undisturbed run
#   async: the run completes
# and in both the audit of the records finds nothing.
# In one process: parts of a run that are killed are replaced, and the run goes on by itself.
# Usage: resume.sh GRPO TROUPE sync|async KILLS [SEED [more options of grpo...]]
set -euo pipefail
grpo=$1 troupe=$2 mode=$3 kills=$4 seed=${5:-1}
shift $(($# < 5 ? $# : 5))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=$seed
options=(--colocate --task add --mode "$mode" --steps 60 --batch 16 --group-size 4 --eval-limit 20 --eval-every 20
    --checkpoint-every 7 --seed "$seed" "$@")

sums() { (cd "$1" && sha256sum model.safetensors optimizer.safetensors); }

begun=$(date +%s%N)
"$grpo" "${options[@]}" --out "$work/whole" >"$work/log"
took_ms=$((($(date +%s%N) - begun) / 1000000))
"$troupe" audit "$work/whole" >"$work/audit" || { cat "$work/audit"; exit 1; }

killed=0
for ((i = 0; killed < kills && i < kills * 3; i++)); do
    run=$work/run-$i
    "$grpo" "${options[@]}" --out "$run" >"$work/log-$i" 2>&1 &
    pid=$!
    for ((k = 0; k < 3; k++)); do
        delay=$((RANDOM % (took_ms + 50)))
        sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
        if kill -9 "$pid" 2>/dev/null; then
            killed=$((killed + 1))
        fi
        wait "$pid" 2>/dev/null || true
        [ -e "$run/journal" ] || break
        "$grpo" --colocate --resume "$run" >>"$work/log-$i" 2>&1 &
        pid=$!
    done
    wait "$pid" || { [ ! -e "$run/journal" ] || { echo "the resumed run $i failed:"; tail -n 5 "$work/log-$i"; exit 1; }; }
    [ -e "$run/journal" ] || continue # killed before there was anything to resume
    if [ ! -d "$run/checkpoint-60" ]; then
        echo "run $i did not reach its last checkpoint:"
        tail -n 5 "$work/log-$i"
        exit 1
    fi
    if [ "$mode" = sync ] && ! diff <(sums "$work/whole/checkpoint-60") <(sums "$run/checkpoint-60"); then
        echo "run $i, killed and resumed, differs from the undisturbed one"
        exit 1
    fi
    if ! "$troupe" audit "$run" >"$work/audit"; then
        echo "the audit of run $i:"
        cat "$work/audit"
        exit 1
    fi
    rm -rf "$run"
done
echo "$mode: $killed kills, every run completed, audits clean"
[ "$killed" -ge "$kills" ]
