#!/bin/sh
# The version of what is built: that of the newest tag v*, with the commits since then and the commit's name behind it;
# without tags, or outside of a repository, the one that is handed in.
# usage: version.sh VERSION
set -eu
cd "$(dirname "$0")/.."
# A clone of our own, not that of a package around us.
if [ -e .git ] && tag=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null); then
    echo "$tag" | sed 's/^v//; s/-\([0-9]*\)-g/+\1.g/'
else
    echo "$1"
fi
