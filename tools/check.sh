#!/bin/sh
# What a change must pass before it is committed: format, headers, lists, symbols, gcc and clang builds with their
# tests, sanitizers. Needs what tools/setup.sh installs, and clang, clang-format and binutils.
# usage: check.sh [quick]      quick: what needs no second build
set -eu
cd "$(dirname "$0")/.."

failed=0
fail() {
    echo "check: $*" >&2
    failed=1
}

tests() { # FOLDER TESTS... of a build; none: all
    folder=$1
    shift
    meson compile -C "$folder" >"$folder/said" 2>&1 || { tail -n 40 "$folder/said"; fail "$folder does not build"; return; }
    meson test -C "$folder" --no-rebuild --print-errorlogs --timeout-multiplier 10 "$@" || fail "tests of $folder fail"
}

folder() { # FOLDER CC MESON-OPTIONS...
    name=$1 cc=$2
    shift 2
    [ -f "$name/build.ninja" ] || CC=$cc meson setup "$name" "$@" >/dev/null
}

echo "== format"
git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror || fail "run clang-format -i"

echo "== rooms in order"
tools/check_rooms.sh || fail "a room looks into one behind it"

echo "== headers named as their sources"
tools/check_headers.sh >/dev/null || fail "tools/check_headers.sh lists functions that a header of another name declares"

echo "== each header compiles alone"
flags="-std=gnu11 -D_GNU_SOURCE -I. -Wall -Wextra -fsyntax-only $(pkg-config --cflags jansson libpcre2-8 libutf8proc libxxhash yaml-0.1)"
for header in $(git ls-files '*.h'); do
    case $header in
    ops/simd/vec16.h | ops/simd/normal_body.h | ops/simd/simd_body.h | tests/*) continue ;; # parts of one file, compiled with its settings
    esac
    # shellcheck disable=SC2086
    echo "#include \"$header\"" | ${CC:-cc} $flags -x c - || fail "$header needs another header before it"
done

echo "== each file is in its list"
for file in $(git ls-files '*.c' 'tests/cli/*.sh'); do
    folder=$(dirname "$file")
    while [ ! -f "$folder/meson.build" ]; do folder=$(dirname "$folder"); done
    list=$folder/meson.build
    name=$(basename "$file")
    case $file in
    graphs/environments/*.c) # examples for users, as they compile them
        grep -qF "/$file\"" tests/e2e/*.sh || fail "$file: no test compiles it"
        continue
        ;;
    graphs/programs/*.c) list=tests/meson.build ;;
    esac
    name=${name%.*}
    grep -qE "'([a-z./]*/)?(${name#test_}|${name#fuzz_}|${name#bench_}|${name#gpu_}|$name\.c)'" "$list" || fail "$file is not in $list"
done

echo "== gcc"
folder build-gcc gcc
tests build-gcc

echo "== the library defines gr_ symbols alone"
nm -g --defined-only build-gcc/libgr.a | awk 'NF == 3 && $3 !~ /^gr_/ { print $3; bad = 1 } END { exit bad }' ||
    fail "libgr.a defines other symbols"

if [ "${1-}" != quick ]; then
    echo "== clang"
    folder build-clang clang
    tests build-clang
    echo "== address and undefined behaviour sanitizers"
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    folder build-asan gcc -Db_sanitize=address,undefined -Db_lundef=false
    # shellcheck disable=SC2046 # one word a test; budgets measures resident memory, which the sanitizer fills
    tests build-asan $(meson test -C build-asan --list 2>/dev/null | awk '$2 == "/" && $3 != "budgets" { print $3 }')
    echo "== thread sanitizer"
    folder build-tsan gcc -Db_sanitize=thread -Db_lundef=false
    tests build-tsan executor threads worker kernels model_cpu watch comm ranks_canonical
fi

[ $failed = 0 ] && echo "check: all is well"
exit $failed
