#!/usr/bin/env bash
# SIGTERM (to the driver, and to every process), SIGINT, SIGHUP and the time limit end a run with a checkpoint of its last step, a summary, a clean audit and the
# exit code that says why; a second signal ends it at once; a full disk leaves the older checkpoint good.
# Usage: stop.sh GRPO TROUPE
set -euo pipefail
grpo=$1 troupe=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(--task add --steps 100000 --batch 16 --group-size 4 --eval-limit 20 --eval-every 20 --checkpoint-every 1000)

# last NAME: the newest value of a column of metrics.jsonl
last() { tail -n 1 "$1/metrics.jsonl" | grep -o "\"$2\":[^,}]*" | cut -d: -f2; }

check() { # NAME EXPECTED-CODE ACTUAL-CODE
    local run=$work/$1 step
    [ "$3" -eq "$2" ] || { echo "$1: exit code $3, wanted $2"; cat "$work/$1.log"; exit 1; }
    step=$(last "$run" step)
    [ -d "$run/checkpoint-$step" ] || { echo "$1: no checkpoint of the last step $step"; ls "$run"; exit 1; }
    grep -Eq "^(policy\[0\]: )?stopped: $step of" "$work/$1.log" || { echo "$1: no summary"; cat "$work/$1.log"; exit 1; }
    "$troupe" audit "$run" >"$work/audit" || { echo "$1:"; cat "$work/audit"; exit 1; }
    echo "$1: stopped at step $step, exit code $3, audit clean"
}

# started NAME: waits (by looking, not by time) until some steps are done
started() {
    for ((i = 0; i < 600; i++)); do
        [ "$(wc -l <"$work/$1/metrics.jsonl" 2>/dev/null || echo 0)" -ge 3 ] && return 0
        sleep 0.05
    done
    echo "$1: no third step"
    exit 1
}

for pair in term:TERM:143 int:INT:130 hup:HUP:129 all:TERM:143; do
    IFS=: read -r name signal code <<<"$pair"
    "$grpo" "${options[@]}" --out "$work/$name" >"$work/$name.log" 2>&1 &
    pid=$!
    started "$name"
    kill -"$signal" "$pid"
    if [ "$name" = all ]; then # as a batch system does
        sleep 0.05
        pkill -"$signal" -f -- "--out $work/all( |\$)" || true
    fi
    actual=0
    wait "$pid" || actual=$?
    check "$name" "$code" "$actual"
done

actual=0
"$grpo" "${options[@]}" --time-limit 2 --out "$work/limit" >"$work/limit.log" 2>&1 || actual=$?
check limit 0 "$actual"

# The limit on file sizes lets checkpoints of step 2 be written and, once samples.jsonl has grown past it, nothing more.
actual=0
(ulimit -S -f 1400; trap '' XFSZ; exec "$grpo" "${options[@]}" --steps 100000 --checkpoint-every 2 --out "$work/full" >"$work/full.log" 2>&1) || actual=$?
[ "$actual" -eq 1 ] || { echo "full disk: exit code $actual"; cat "$work/full.log"; exit 1; }
newest=$(find "$work/full" -maxdepth 1 -name 'checkpoint-*' | sort -V | tail -n 1)
torn=$(find "$work/full" -maxdepth 1 -name '*.tmp-*')
if [ -z "$newest" ] || [ -n "$torn" ]; then
    echo "full disk: nothing good, or a torn checkpoint, is left"
    ls "$work/full"
    exit 1
fi
"$grpo" --resume "$work/full" --steps $((${newest##*-} + 3)) >"$work/full2.log" 2>&1 || { echo "full disk: cannot go on:"; cat "$work/full2.log"; exit 1; }
"$troupe" audit "$work/full" >"$work/audit" || { echo "full disk:"; cat "$work/audit"; exit 1; }
echo "full disk: exit code 1, ${newest##*/} is good, resumed, audit clean"
