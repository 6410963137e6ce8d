#!/usr/bin/env bash
# How good is the simulator at finding bugs? Each patch in this folder plants one in the machines of
# runtime/stream; `troupe sim` must find it.
#   bench/planted/run.sh SOURCE [NAME...]      (NAME: part of a patch's name; none: all of them)
#
# SOURCE is a checkout. Its files are copied to a temporary folder, where each patch is applied by
# itself, `troupe` is built, and the simulator runs seeds 1..1000 of its first scenario, then 1..200 of
# each other one until one of them fails. A bug counts as found when a seed tells of a violation or
# dies of a broken invariant. The last line is the total; the exit code is 1 when a bug was missed
# and 2 when the tree without a patch does not pass or a patch does not apply.
set -u
source=$(realpath "${1:?the checkout}")
shift
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1

mkdir "$tree"
(cd "$source" && git ls-files -z -co --exclude-standard |
    tar --null --no-recursion --ignore-failed-read -T - -cf -) 2>/dev/null | tar -xf - -C "$tree"
cmake -S "$tree" -B "$work/build" -G Ninja >"$work/log" 2>&1 || { cat "$work/log"; exit 2; }
cp -r "$tree/runtime/stream" "$work/kept"

simulate() {
    timeout 300 "$work/build/actors/troupe" sim "$@"
}

build() {
    ninja -C "$work/build" -j2 troupe >"$work/log" 2>&1 || { tail -30 "$work/log" >&2; return 1; }
}

# scenario, last seed: 0 when all is well. Else `first` is the seed and `name` what it said.
fails() {
    simulate --scenario "$1" --seeds "1..$2" >"$work/out" 2>"$work/err"
    local code=$?
    [ $code -eq 0 ] && return 1
    first=$(sed -n 's/^seed \([0-9]*\):.*/\1/p' "$work/out" | sort -n | head -1)
    name=$(sed -n 's/.*: violation \([^:]*\):.*/\1/p' "$work/out" | head -1)
    share=$(sed -n 's/^\([0-9]*\) of [0-9]* seeds with violations/\1/p' "$work/out")
    if [ $code -ne 1 ]; then # it died: the first seed is where a shorter range dies too
        share=-
        name="invariant: $(sed -n 's/.*invariant broken at [^ ]* //p' "$work/err" | head -1 | cut -c1-50)"
        [ $code -eq 124 ] && name="does not end"
        local low=1 high=$2
        while [ "$low" -lt "$high" ]; do
            local middle=$(((low + high) / 2))
            if simulate --scenario "$1" --seeds "$low..$middle" >"$work/out" 2>&1; then
                low=$((middle + 1))
            else
                high=$middle
            fi
        done
        first=$low
        simulate --scenario "$1" --seed "$first" >"$work/out" 2>&1
        [ $? -eq 1 ] && name=$(sed -n 's/.*: violation \([^:]*\):.*/\1/p' "$work/out" | head -1)
    fi
    return 0
}

build || exit 2
scenarios=$(simulate --list | awk '{ print $1 }')
last=1000
for scenario in $scenarios; do
    if fails "$scenario" $last; then
        echo "without a patch: $scenario, seed $first: $name"
        exit 2
    fi
    last=200
done

row='| %-28s | %-9s | %-14s | %5s | %5s | %s |\n'
# shellcheck disable=SC2059
{
    printf "$row" bug verdict scenario seed share "what was told first"
    printf "$row" --- --- --- ---: ---: ---
}
found=0 total=0 broken=0
for patch in "$here"/*.patch; do
    title=$(basename "$patch" .patch)
    wanted=$([ $# -eq 0 ] && echo yes)
    for part in "$@"; do
        case $title in *"$part"*) wanted=yes ;; esac
    done
    [ -n "$wanted" ] || continue
    total=$((total + 1))
    if ! patch -d "$tree" -p1 -s -N <"$patch" >"$work/log" 2>&1 || ! build; then
        cat "$work/log" >&2
        broken=$((broken + 1))
        # shellcheck disable=SC2059
        printf "$row" "$title" "no build" - - - -
    else
        verdict='not found' where=- first=- share=- name=- last=1000
        for scenario in $scenarios; do
            if fails "$scenario" $last; then
                verdict=found where=$scenario found=$((found + 1))
                break
            fi
            last=200
        done
        # shellcheck disable=SC2059
        printf "$row" "$title" "$verdict" "$where" "$first" "$share" "$name"
    fi
    sed -n 's|^+++ b/||p' "$patch" | while read -r file; do
        cp "$work/kept/$(basename "$file")" "$tree/$file"
        rm -f "$tree/$file.orig" "$tree/$file.rej"
    done
done
echo "$found of $total bugs found"
[ $broken -eq 0 ] || exit 2
[ $found -eq $total ]
