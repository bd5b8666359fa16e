#!/bin/sh
# Set up, build and run all tests. GR_SLOW=1 runs the slow suites too.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh
# One more than there are cores: many tests wait for time limits.
meson test -C build --print-errorlogs --num-processes $(($(nproc) + 1))
