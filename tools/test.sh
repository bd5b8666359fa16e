#!/bin/sh
# Set up, build and run all tests. GR_SLOW=1 runs the slow suites too.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh
# Two for each core: many tests wait for ranks or time limits.
meson test -C build --print-errorlogs --num-processes $((2 * $(nproc)))
