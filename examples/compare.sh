#!/usr/bin/env bash
# Runs a program and compares its standard output with a file. Usage: compare.sh EXPECTED PROGRAM [ARGS...]
set -euo pipefail
expected=$1
shift
if ! diff -u "$expected" <("$@") >&2; then
    echo "$* did not print what $expected says" >&2
    exit 1
fi
cat "$expected"
