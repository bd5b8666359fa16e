#!/bin/sh
# The package as a user has it: build the wheel, install it in a bare environment, and run its tests from there, with
# the library and the program of the wheel alone.
# usage: test.sh [WHEEL]       WHEEL: one that is built already
set -eu
here=$(dirname "$(realpath "$0")")
wheel=${1:+$(realpath "$1")}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
if [ -z "$wheel" ]; then
    python3 -m pip wheel -q --no-deps -w "$dir" "$here"
    wheel=$(echo "$dir"/graphrun-*.whl)
fi
python3 -m venv "$dir/env"
unset GRAPHRUN_LIBRARY GRAPHRUN_PROGRAM LD_LIBRARY_PATH
"$dir/env/bin/pip" install -q --no-deps "$wheel" # without numpy: all but arrays
"$dir/env/bin/graphrun" --version
(cd "$dir" && "$dir/env/bin/python" -c "import graphrun; print(graphrun.version())")
"$dir/env/bin/pip" install -q "$wheel" pytest
cd "$dir" # away from the sources, which are a package too
"$dir/env/bin/python" -m pytest -q -p no:cacheprovider --import-mode=importlib --rootdir "$here/tests" "$here/tests"
