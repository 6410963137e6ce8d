#!/usr/bin/env bash
# How good are the tests at finding bugs in what makes a run survive? Each patch in this folder plants
# one in the processes, the link, the actor layer, the store or the policy's restart; the tests that its
# first lines name must notice it.
#   bench/planted/processes/run.sh SOURCE [NAME...]   (NAME: part of a patch's name; none: all of them)
#
# SOURCE is a checkout. Its files are copied to a temporary folder, where each patch is applied by itself
# and its tests are built and run: "Tests:" names those of ctest, "Cases:" those of tests/e2e/processes.
# The last line is the total; the exit code is 1 when a bug was missed and 2 when a patch does not apply
# or build, or when its tests fail without it.
set -u
source=$(realpath "${1:?the checkout}")
shift
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree build=$work/build
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1

mkdir "$tree"
(cd "$source" && git ls-files -z -co --exclude-standard |
    tar --null --no-recursion --ignore-failed-read -T - -cf -) 2>/dev/null | tar -xf - -C "$tree"
cmake -S "$tree" -B "$build" -G Ninja >"$work/log" 2>&1 || { cat "$work/log"; exit 2; }

# The programs of a test.
targets() {
    local name
    for name in "$@"; do
        case $name in
            restart_*) echo restart_run troupe ;;
            kill_* | resume_*) echo grpo troupe ;;
            processes*) echo cast troupe ;;
            *) echo "test_$name" ;;
        esac
    done
}

# What noticed it, or nothing. $tests and $cases are those of the patch.
failures() {
    if [ -n "$tests" ]; then
        ctest --test-dir "$build" -j2 --timeout 100 -R "^(${tests// /|})\$" >"$work/out" 2>&1
        sed -nE 's/^\t *[0-9]+ - ([^ ]+) \(.*/\1/p' "$work/out"
    fi
    if [ -n "$cases" ]; then
        for script in processes survive; do
            # shellcheck disable=SC2086
            python3 "$tree/tests/e2e/processes/$script.py" "$build/tests/e2e/processes/cast" \
                "$build/actors/troupe" $cases 2>&1 | sed -nE 's/^FAILED +[0-9.]+ s +([a-z_0-9]+):.*/\1/p'
        done
    fi
}

compile() {
    # shellcheck disable=SC2046,SC2086
    ninja -C "$build" -j2 $(targets $tests ${cases:+processes} | tr ' ' '\n' | sort -u) >"$work/log" 2>&1 ||
        { tail -30 "$work/log" >&2; return 1; }
}

row='| %-32s | %-9s | %s |\n'
# shellcheck disable=SC2059
{
    printf "$row" bug verdict "found by"
    printf "$row" --- --- ---
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
    tests=$(sed -n 's/^Tests: //p' "$patch")
    cases=$(sed -n 's/^Cases: //p' "$patch")
    verdict='not found' by=-
    if ! compile || [ -n "$(failures)" ]; then
        verdict='no base'
    elif ! patch -d "$tree" -p1 -s -N <"$patch" >"$work/log" 2>&1 || ! compile; then
        cat "$work/log" >&2
        verdict='no build'
    else
        by=$(failures | sort -u | paste -sd, | sed 's/,/, /g')
        [ -n "$by" ] && verdict=found
    fi
    case $verdict in
        found) found=$((found + 1)) ;;
        no*base | no*build) broken=$((broken + 1)) ;;
    esac
    # shellcheck disable=SC2059
    printf "$row" "$title" "$verdict" "${by:--}"
    sed -n 's|^+++ b/||p' "$patch" | while read -r file; do
        cp "$source/$file" "$tree/$file"
        rm -f "$tree/$file.orig" "$tree/$file.rej"
    done
done
echo "$found of $total bugs found"
[ $broken -eq 0 ] || exit 2
[ $found -eq $total ]
