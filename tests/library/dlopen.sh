#!/usr/bin/env bash
# Builds user/dlopen.c, which is not linked with the library, and has it load the library 100 times.
# Usage: dlopen.sh PREFIX WORK_DIR SOURCE_DIR
set -euo pipefail
prefix=$1 work=$2 source=$3
mkdir -p "$work"
gcc -std=gnu17 -Wall -Wextra -Werror "-I$prefix/include" "$source/dlopen.c" -o "$work/dlopen"
# One arena and no per-thread cache: then what the C library counts as used is what somebody holds.
GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1 timeout 50 "$work/dlopen" "$prefix/lib/libtroupe.so" 100
