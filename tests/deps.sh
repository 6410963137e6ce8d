#!/usr/bin/env bash
# Installs from Debian's packages what building and testing need and what is missing. Root or sudo.
# Prints one line when there is nothing to do. Usage: tests/deps.sh [--build-only]
set -euo pipefail

build="gcc g++ cmake ninja-build pkg-config libmsgpack-dev libjansson-dev libxxhash-dev
  libutf8proc-dev libpcre2-dev libjemalloc-dev libcmocka-dev ca-certificates"
tests="libdnnl-dev clang-14 clang-format-14 libclang-rt-14-dev llvm-14 valgrind shellcheck codespell mandoc python3 procps"
wanted=$build
[ "${1:-}" = "--build-only" ] || wanted="$build $tests"

missing=()
for package in $wanted; do
    [ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "dependencies: all there"
    exit 0
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "these packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
echo "dependencies: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
