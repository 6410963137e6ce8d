#!/usr/bin/env bash
# Builds every installed example with the installed library, as a reader of it would, and runs those whose
# output is known; then a step of grpo on the installed data. Usage: examples.sh PREFIX WORK_DIR
set -euo pipefail
prefix=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
read -ra flags <<<"$(pkg-config --cflags troupe jansson)"
read -ra libs <<<"$(pkg-config --libs troupe jansson) -lm"
cd "$prefix/share/doc/troupe/examples"
built=0
for folder in */; do
    name=${folder%/}
    if ! ls "$name"/*.c >/dev/null 2>&1; then
        continue
    fi
    gcc -std=gnu17 -Wall -Wextra -Werror "${flags[@]}" "$name"/*.c -o "$work/$name" "${libs[@]}"
    built=$((built + 1))
    if [ -e "$name/expected.txt" ]; then
        ./compare.sh "$name/expected.txt" "$work/$name" >/dev/null
    fi
done
cd ..
"$work/grpo" --task add --steps 1 --batch 4 --group-size 4 --eval-limit 20 --out "$work/run" >/dev/null
"$prefix/bin/troupe" audit "$work/run" >/dev/null
echo "examples: $built built as a user would"
[ $built -ge 9 ]
