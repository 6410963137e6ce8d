#!/usr/bin/env bash
# Runs flow_toy as a user would and checks what it prints and leaves behind.
#   check.sh FLOW_TOY [TROUPE]
# With the troupe program each run directory is also audited.
set -u
flow=$1
troupe=${2:-}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

complain() {
    echo "FAILED: $1"
    failed=1
}

# Compares the number behind the text $3 in the output of run $1 with a limit: check RUN OP TEXT LIMIT.
check() {
    awk -v text="$3" -v op="$2" -v limit="$4" '
        !found && (i = index($0, text)) > 0 { value = substr($0, i + length(text)) + 0; found = 1 }
        END { exit !(found && (op == "<=" ? value <= limit : value >= limit)) }' "$dir/$1.txt" ||
        complain "$1: \"$3\" is not $2 $4"
}

audit() {
    if [ -n "$troupe" ] && ! "$troupe" audit "$dir/$1" >"$dir/$1.audit" 2>&1; then
        cat "$dir/$1.audit"
        complain "audit of $1"
    fi
}

# --- learning at lags 0, 1 and 2 ---

learn() { # name, largest lag, options
    name=$1 bound=$2
    shift 2
    "$flow" --colocate --out "$dir/$name" "$@" >"$dir/$name.txt" 2>"$dir/$name.err"
    code=$?
    tail -n 6 "$dir/$name.txt"
    [ $code -eq 0 ] || complain "$name: exit code $code: $(cat "$dir/$name.err")"
    grep -q '^done: 100 of 100 steps, version 100$' "$dir/$name.txt" || complain "$name: not done"
    check "$name" "<=" "90 % of the gain at step " 60
    check "$name" "<=" "rms(m - target): " 0.1
    check "$name" "<=" ", max " "$bound"
    check "$name" ">=" "at equal weights: " 288
    at=$(awk -F'"reward_mean":' '{ r = $2 + 0 } NR == 1 { goal = r + 0.9 * (-0.25 - r) }
        r >= goal { print NR; exit }' "$dir/$name/metrics.jsonl")
    grep -q "gain at step $at\$" "$dir/$name.txt" || complain "$name: metrics.jsonl says step $at"
    grep -q 'largest difference 0$' "$dir/$name.txt" || complain "$name: log-probs differ"
    grep -q ' 400 dispatched = 400 trained + 0 stale + 0 failed ' "$dir/$name.txt" || complain "$name: groups"
    [ "$(grep -c '"status":"trained"' "$dir/$name/samples.jsonl")" -eq 9600 ] ||
        complain "$name: samples.jsonl"
    [ "$(wc -l <"$dir/$name/metrics.jsonl")" -eq 100 ] || complain "$name: metrics.jsonl"
    audit "$name"
}

learn sync 0 --mode sync
learn lag1 1 --max-lag 1 --mean-lag 1
learn lag2 2 --max-lag 2 --mean-lag 2 --checkpoint-every 0

# --- synchronous: the same bits, however many rollouts ---

learn spread 0 --mode sync --rollouts 3
cmp "$dir/sync/checkpoint-100/policy.json" "$dir/spread/checkpoint-100/policy.json" ||
    complain "three rollouts give other weights than one"

# --- in processes of their own: the same bits ---

"$flow" --mode sync --out "$dir/apart" >"$dir/apart.txt" 2>&1 || complain "apart: $(cat "$dir/apart.txt")"
cmp "$dir/sync/checkpoint-100/policy.json" "$dir/apart/checkpoint-100/policy.json" ||
    complain "processes of their own give other weights than one"
audit apart

# --- ended from outside, when ten steps are done ---

end_by() { # name, signal, expected code
    mkfifo "$dir/$1.fifo"
    "$flow" --colocate --steps 10000 --checkpoint-every 7 --out "$dir/$1" >"$dir/$1.fifo" 2>&1 &
    pid=$!
    exec 3<"$dir/$1.fifo"
    while read -r line <&3; do
        case $line in
        "step 10/"*) kill "-$2" $pid ;;
        stopped:*) echo "$1: $line" ;;
        esac
    done
    exec 3<&-
    { wait $pid; } 2>/dev/null
    code=$?
    [ $code -eq "$3" ] || complain "$1: exit code $code, not $3"
    audit "$1"
}

end_by terminated TERM 143
end_by killed KILL 137
last=$(tail -n 1 "$dir/terminated/metrics.jsonl" | sed 's/.*"step":\([0-9]*\).*/\1/')
[ -f "$dir/terminated/checkpoint-$last/manifest.json" ] ||
    complain "terminated: no checkpoint of its last step, $last"

# --- mistakes: exit code 2, the option named, nothing left behind ---

refuse() { # text that the message holds, options
    text=$1
    shift
    "$flow" "$@" >"$dir/refused.txt" 2>&1
    code=$?
    [ $code -eq 2 ] || complain "$*: exit code $code, not 2"
    grep -q -e "$text" "$dir/refused.txt" || complain "$*: $(cat "$dir/refused.txt")"
}

refuse "File exists" --out "$dir/sync"
refuse "--max-lag 1 is below --mean-lag 2" --max-lag 1 --mean-lag 2 --out "$dir/nothing"
refuse "did you mean --max-lag" --maxlag 2 --out "$dir/nothing"
refuse "No such file" --out "$dir/missing/run"
"$flow" --graph --out "$dir/nothing" | grep -q 'rollout --> \[reward\] --> policy' ||
    complain "--graph"
[ ! -e "$dir/nothing" ] || complain "a directory was left behind"

[ $failed -eq 0 ] && echo "flow_toy: all checks passed"
exit $failed
