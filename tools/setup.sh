#!/bin/sh
# Install what graphrun builds with, by name, through apt-get (Debian 12, Ubuntu 22.04 and 24.04), then build it.
# As root, or with sudo. Packages that are there already are left alone. Set CUDA builds up with their own toolkit.
set -eu
cd "$(dirname "$0")/.."

packages="gcc libc6-dev meson ninja-build pkg-config libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev
libxxhash-dev zlib1g-dev liburing-dev libmpc-dev libcurl4-openssl-dev libmicrohttpd-dev libcmocka-dev libopenmpi-dev openmpi-bin"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || { echo "setup: install these as root:$missing" >&2; exit 1; }
        as_root=sudo
    fi
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi

# Line numbers are what messages of debuggers need most; all of it takes longer to build: meson setup build by hand has that.
[ -f build/build.ninja ] || meson setup build -Dc_args=-g1
meson compile -C build
