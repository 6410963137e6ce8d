#!/usr/bin/env bash
# A device that cannot be had is refused in a sentence that names what is missing and the remedy, with
# exit code 2.   absent.sh TROUPE MODEL FOLDER-WITH-A-WRONG-SHARED-OBJECT
set -euo pipefail
troupe=$1 model=$2 stranger=$3
failed=0
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT

# refused WORD... : the command before it has put its exit code in $code and its words in $said.
refused() {
    local word
    [ "$code" -eq 2 ] || { echo "exit code $code, not 2: $said"; failed=1; }
    for word in "$@"; do
        [[ $said == *"$word"* ]] || { echo "no \"$word\" in: $said"; failed=1; }
    done
    echo "$said"
}

# verify [NAME=VALUE...] DEVICE
verify() {
    local device=${!#}
    code=0
    said=$(env "${@:1:$#-1}" "$troupe" model verify "$model" --device "$device" 2>&1 >/dev/null) || code=$?
}

verify TROUPE_DEVICE_PATH="$empty" cuda
refused '"cuda"' libtroupe_cuda.so "$empty" nvcc TROUPE_DEVICE_PATH
verify TROUPE_DEVICE_PATH="$empty::$stranger" cuda:1
refused "$stranger/libtroupe_cuda.so" "another version" "build both"
printf 'no shared object %.0s' {1..9} >"$empty/libtroupe_cuda.so"
verify TROUPE_DEVICE_PATH="$empty" cuda
refused "$empty/libtroupe_cuda.so" "cannot be loaded" "invalid ELF header" "build or install it again"
verify cud
refused '"cud"' "did you mean cuda?" "cpu:plain"
verify cudas
refused '"cudas" is not built into this program'
if [ -e /dev/nvidiactl ] && nvidia-smi >/dev/null 2>&1; then
    verify cuda:nonesuch
    refused '"cuda:nonesuch" is not here' cuda:GPU-
else
    # With the real shared object where it was built, and without.
    verify cuda
    refused '"cuda"'
fi
exit $failed
