#!/usr/bin/env bash
# Trains three steps of the addition task with the reward program in Python, and again with the one in
# C: the same rewards, so, in sync mode, the same numbers to the last digit.
# Usage: run.sh GRPO SCORE_PROGRAM [DIR]
set -euo pipefail
grpo=$1 score=$2 out=${3:-$(mktemp -d)}
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$out/python" "$out/c"
mkdir -p "$out"

train() { # NAME COMMAND
    "$grpo" --task add --mode sync --steps 3 --batch 4 --group-size 4 --eval-every 0 --eval-limit 50 \
        --reward-cmd "$2" --out "$out/$1" >"$out/$1.log" 2>&1 || { cat "$out/$1.log"; exit 1; }
    grep -o '"step":[^,]*\|"reward_mean":[^,]*\|"loss":[^,]*' "$out/$1/metrics.jsonl" | paste -sd'  \n' | tee "$out/$1.txt"
}

echo "with score.py"
train python "python3 $here/score.py"
echo "with score.c"
train c "$score"
cmp "$out/python.txt" "$out/c.txt" && echo "the same numbers"
