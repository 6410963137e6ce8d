#!/usr/bin/env bash
# Every installed header alone, in C17 and C++17, under a user's warnings, by each compiler at hand.
# Usage: headers.sh PREFIX WORK_DIR
set -euo pipefail
prefix=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
cd "$prefix/include"
count=0
while read -r header; do
    name=${header//\//_}
    printf '#include <%s>\ntypedef int header_stands_alone;\n' "$header" | tee "$work/$name.c" >"$work/$name.cpp"
    count=$((count + 1))
done < <(find troupe -name '*.h' | sort)
flags="-fsyntax-only -Wall -Wextra -Wpedantic -Werror -I$prefix/include"
used=()
for pair in gcc:g++ clang-14:clang++-14; do
    for compiler in "${pair%:*} -std=c17 c" "${pair#*:} -std=c++17 cpp"; do
        read -r program standard suffix <<<"$compiler"
        command -v "$program" >/dev/null || continue
        # shellcheck disable=SC2086 # the flags are words
        "$program" "$standard" $flags "$work"/*."$suffix"
        used+=("$program")
    done
done
echo "headers: $count, each alone with ${used[*]}"
[ ${#used[@]} -ge 2 ] && [ "$count" -gt 30 ]
