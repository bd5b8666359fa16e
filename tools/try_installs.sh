#!/bin/sh
# Installs tried from nothing: in a root of each system that debootstrap makes, as its users have it, the Debian package is
# built, installed and used, or tools/setup.sh and meson install put the program there. Needs root, and debootstrap.
# usage: try_installs.sh SUITE...     bookworm trixie (Debian 12, 13), jammy noble (Ubuntu 22.04, 24.04)
# DEB_BUILD_OPTIONS=noopt builds in a minute what else takes several. DEBS=FOLDER: packages built already, on such a system.
# A system whose packages cannot be reached is named as not tried, and makes the exit status 77 where nothing failed.
set -eu
cd "$(dirname "$0")/.."
roots=${ROOTS:-$(mktemp -d)}
failed=0 untried=0

say() { echo "== $*"; }

make_root() { # SUITE: what apt-get of this machine is set up for decides how it is reached
    case $1 in
    jammy | noble) mirror=http://archive.ubuntu.com/ubuntu more=--components=main,universe ;;
    *) mirror=http://deb.debian.org/debian more= ;;
    esac
    [ -f "$roots/$1/etc/os-release" ] && return
    # A debootstrap that is older than a suite of Ubuntu makes it as it makes all of them.
    script=
    if [ "${mirror%/ubuntu}" != "$mirror" ] && [ ! -e "/usr/share/debootstrap/scripts/$1" ]; then
        script=/usr/share/debootstrap/scripts/gutsy
        keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
        if [ -f $keys ]; then more="$more --keyring=$keys"; fi
    fi
    # shellcheck disable=SC2086
    debootstrap --variant=minbase $more "$1" "$roots/$1" "${MIRROR:-$mirror}" $script >"$roots/$1.log" 2>&1
}

inside() { # SUITE COMMAND
    chroot "$roots/$1" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS-}" sh -ec "$2"
}

use='
    rm -rf /tmp/model /tmp/data /tmp/run
    graphrun --version
    graphrun check /graphrun/graphs/quickstart.yaml
    graphrun init --config /graphrun/graphs/quickstart/config.json --tokenizer /graphrun/graphs/quickstart --seed 1 -o /tmp/model
    mkdir -p /tmp/data && /graphrun/graphs/quickstart/data.sh /tmp/data
    graphrun exec /graphrun/graphs/quickstart.yaml --set model=/tmp/model --set data=/tmp/data/train.jsonl --set run.steps=2 --out /tmp/run
    man -w graphrun >/dev/null 2>&1 || ls /usr/share/man/man1/graphrun.1* /usr/local/share/man/man1/graphrun.1* 2>/dev/null | grep -q graphrun
'

build='
    apt-get install -y -qq --no-install-recommends build-essential debhelper devscripts equivs >/dev/null
    cd /graphrun
    mk-build-deps -i -r -t "apt-get -y -qq --no-install-recommends" debian/control >/dev/null
    dpkg-buildpackage -b -us -uc >/tmp/build.log 2>&1 || { tail -30 /tmp/build.log; exit 1; }
'

steps() { # SUITE
    inside "$1" 'apt-get update -qq' || return
    if [ -n "${DEBS-}" ]; then cp "$DEBS"/*.deb "$roots/$1/"; else inside "$1" "$build" || return; fi
    inside "$1" 'apt-get install -y -qq --no-install-recommends $(ls /*.deb | grep -v -e dbgsym -e build-deps) gcc libc6-dev pkg-config >/dev/null' &&
        inside "$1" "$use" &&
        inside "$1" 'cc /graphrun/graphs/programs/train.c -o /tmp/train $(pkg-config --cflags --libs graphrun)' &&
        inside "$1" 'apt-get remove -y -qq graphrun libgraphrun1 >/dev/null; ! command -v graphrun'
}

try() { # SUITE
    mkdir -p "$roots/$1/graphrun"
    git archive HEAD | tar -x -C "$roots/$1/graphrun"
    cp /etc/resolv.conf "$roots/$1/etc/" 2>/dev/null || :
    mount -t proc proc "$roots/$1/proc"
    status=0
    steps "$1" >"$roots/$1.log" 2>&1 || status=1
    umount "$roots/$1/proc"
    return $status
}

for suite; do
    if ! make_root "$suite"; then
        say "$suite: not tried, its packages cannot be reached: $(tail -n 1 "$roots/$suite.log")"
        untried=1
    elif try "$suite"; then
        say "$suite: $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$roots/$suite/etc/os-release"): built, installed, used, removed"
    else
        say "$suite: failed; the end of $roots/$suite.log:"
        tail -n 20 "$roots/$suite.log"
        failed=1
    fi
done
[ $failed = 0 ] || exit 1
[ $untried = 0 ] || exit 77
