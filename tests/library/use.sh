#!/usr/bin/env bash
# Builds a user's programs against an installed library, outside of the tree, and runs them.
# Usage: use.sh pkg-config|cmake PREFIX WORK_DIR SOURCE_DIR
set -euo pipefail
way=$1 prefix=$2 work=$3 source=$4
rm -rf "$work"
mkdir -p "$work"
cp "$source"/* "$work"
cd "$work"

# run WHERE PROGRAM...: it must say 42; WHERE is where the loader may look for the library.
run() {
    local where=$1 said
    shift
    said=$(LD_LIBRARY_PATH=$where timeout 20 "$@") || { echo "$*: exit $?"; exit 1; }
    [ "$said" = "user: 42" ] || { echo "$*: said \"$said\""; exit 1; }
}

if [ "$way" = pkg-config ]; then
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    read -ra flags <<<"-Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags troupe)"
    read -ra shared <<<"$(pkg-config --libs troupe)"
    read -ra static <<<"$(pkg-config --static --libs troupe)"
    gcc -std=c17 "${flags[@]}" user.c -o user_shared "${shared[@]}"
    g++ -std=c++17 "${flags[@]}" user.cpp -o user_cpp_shared "${shared[@]}"
    # The whole program static, so that every library below must be found too.
    gcc -std=c17 -static "${flags[@]}" user.c -o user_static "${static[@]}"
    g++ -std=c++17 -static "${flags[@]}" user.cpp -o user_cpp_static "${static[@]}"
    for program in user_static user_cpp_static; do
        if readelf -d $program | grep -q NEEDED; then echo "$program is not static"; exit 1; fi
    done
    run "$prefix/lib" ./user_shared
    run "$prefix/lib" ./user_cpp_shared
    readelf -d user_shared | grep -q 'NEEDED.*libtroupe.so.0' || { echo "user_shared does not ask for libtroupe.so.0"; exit 1; }
    if LD_LIBRARY_PATH='' ./user_shared 2>/dev/null; then echo "user_shared found another libtroupe"; exit 1; fi
else
    cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release >log 2>&1 || { cat log; exit 1; }
    cmake --build build -j 2 >log 2>&1 || { cat log; exit 1; }
    mv build/user_* .
    run '' ./user_shared # CMake gave it a run path
    run '' ./user_cpp_shared
    if readelf -d user_static | grep -q 'NEEDED.*libtroupe'; then echo "user_static needs the shared library"; exit 1; fi
fi
run '' ./user_static
run '' ./user_cpp_static
echo "use: $way builds four programs that run"
