#!/usr/bin/env bash
# Installs below a DESTDIR and moves the result elsewhere: what the other tests of this folder use must
# not know where it was made to be. Usage: install.sh BUILD_DIR WORK_DIR
set -euo pipefail
build=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
DESTDIR=$work/stage cmake --install "$build" --prefix /opt/troupe >"$work/install.log"
mv "$work/stage/opt/troupe" "$work/prefix"
left=$(find "$work/stage" -not -type d)
[ -z "$left" ] || { echo "installed outside of the prefix: $left"; exit 1; }
cd "$work/prefix"
for file in bin/troupe lib/libtroupe.so lib/libtroupe.so.0 lib/libtroupe.a lib/pkgconfig/troupe.pc \
    lib/cmake/troupe/troupe-config.cmake include/troupe/troupe.h include/troupe/kernels.h \
    include/troupe/packing.h include/troupe/roles.h include/troupe/ext/link.h \
    share/man/man1/troupe.1 share/man/man7/troupe.7 share/doc/troupe/LICENSE share/doc/troupe/examples/hello/hello.c; do
    [ -e "$file" ] || { echo "not installed: $file"; exit 1; }
done
[ "$(readlink lib/libtroupe.so)" = libtroupe.so.0 ] || { echo "lib/libtroupe.so does not lead to the soname"; exit 1; }
# No file that a user's build reads may name the place where it was built or made to lie.
if grep -rlE "/opt/troupe|$build" lib/pkgconfig lib/cmake include; then
    echo "these files name a fixed place"
    exit 1
fi
bin/troupe --version
