#!/usr/bin/env bash
# What staleness costs: examples/flow_toy at lags 0, 1, 2, 4 and 8, three seeds, as a table.
#   bench/flow_staleness.sh FLOW_TOY [SEED...]          (default seeds 0 1 2; about 10 s)
#
# Columns hold one value a seed. "steps" is the first step whose batch has 90 % of the gain from the
# first batch's reward to -tau^2; "slower" is that over the same seed's at lag 0; "clipped" is the share
# of all ratios of the run. The last columns are a single-process Python program of the same problem
# with three other targets (rewards at the start -.85 -1.29 -1.42): its steps, slow-down and distance.
set -u
flow=${1:?the flow_toy program}
shift
seeds=${*:-0 1 2}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

value() { # text, file: the word behind the text, "-" when there is none
    awk -v text="$1" '(i = index($0, text)) > 0 { split(substr($0, i + length(text)), w, /[ ,;]+/); v = w[1] }
        END { print v == "" ? "-" : v }' "$2"
}

reference() {
    case $1 in
    0) echo "20/23/33     1/1/1             .048/.046/.030" ;;
    1) echo "22/27/36     1.10/1.17/1.09    .053/.053/.031" ;;
    2) echo "25/34/44     1.25/1.48/1.33    .047/.055/.033" ;;
    4) echo "42/51/55     2.10/2.22/1.67    .033/.049/.035" ;;
    8) echo "65/79/81     3.25/3.43/2.45    .080/.171/.204" ;;
    esac
}

declare -A base
format='%-4s %-18s %-22s %-13s %-18s %-20s %-18s | %s\n'
# shellcheck disable=SC2059
printf "$format" lag "mean lag" "reward at start" steps slower "rms(m - target)" clipped \
    "Python: steps, slower, rms"
for lag in 0 1 2 4 8; do
    lags='' starts='' steps='' slower='' distances='' clips=''
    for seed in $seeds; do
        out=$dir/$lag-$seed
        "$flow" --seed "$seed" --max-lag "$lag" --mean-lag "$lag" --out "$out" >"$out.txt" ||
            exit 1
        step=$(value 'gain at step ' "$out.txt")
        [ "$lag" != 0 ] || base[$seed]=$step
        lags+=/$(value 'lag: mean ' "$out.txt")
        starts+=/$(value 'reward: ' "$out.txt")
        steps+=/$step
        slower+=/$(awk -v a="$step" -v b="${base[$seed]}" \
            'BEGIN { if (a == "-" || b == "-") print "-"; else printf "%.2f", a / b }')
        distances+=/$(value 'rms(m - target): ' "$out.txt")
        clips+=/$(value 'clipped ' "$out.txt")
    done
    # shellcheck disable=SC2059
    printf "$format" "$lag" "${lags#/}" "${starts#/}" "${steps#/}" "${slower#/}" "${distances#/}" \
        "${clips#/}" "$(reference "$lag")"
done
