#!/bin/bash
# Calls and objects: troupe beside CAF and Ray on the same machine, one after the other.
#
#   bench/peers/rates.sh BUILD_DIR [PYTHON]
#
# PYTHON has ray (a virtual environment will do); CAF is Debian's libcaf-dev. What is not there is
# told as "not run".
set -u
build=${1:?"usage: rates.sh BUILD_DIR [PYTHON]"}
python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT

echo "# $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), load $(cut -d' ' -f1 /proc/loadavg)"
echo "## troupe, one process: same loop, two threads"
"$build/bench/macro/bench_calls"
if [ -x "$build/bench/macro/bench_link" ]; then
    echo "## the link between processes, beside bare Unix sockets"
    timeout 120 "$build/bench/macro/bench_link"
fi
echo "## troupe, each replica a process"
timeout 200 "$build/bench/macro/bench_rates"
echo "## troupe, one process (--colocate)"
timeout 200 "$build/bench/macro/bench_rates" --colocate
echo "## CAF, one process"
if g++ -O2 -std=c++17 "$here/caf_rates.cpp" -lcaf_core -o "$scratch/caf" 2> "$scratch/log"; then
    timeout 120 "$scratch/caf"
else
    echo "caf: not run (libcaf-dev does not compile here: $(head -n 1 "$scratch/log"))"
fi
echo "## Ray, each actor a process"
timeout 400 "$python" "$here/ray_rates.py" 2> "$scratch/ray" || { echo "ray: failed"; tail -n 3 "$scratch/ray"; }
