#!/bin/sh
# compute-sanitizer over the programs of tests/gpu, in their small sizes (--small), several at a time. A line for each tool
# and program: checks that passed, checks that failed, what the tool found, seconds. Fails where any of it is not as it
# must be, or a time is up; skips (77) where there is no device or no tool.
#
# usage: [JOBS=9] [LOGS=DIR] [PROGRAMS="NAME..."] sanitize.sh DIR [TOOL[:SECONDS]...]
#   DIR holds the programs (B/tests/gpu); tools: memcheck initcheck racecheck (these three where none is named) synccheck.
#   SECONDS: for each program, 280 where not said. PROGRAMS: without gpu_, NAME+OPTION with --OPTION; all where it is not set. LOGS: where logs are left.
#
# racecheck and synccheck follow our kernels alone (programs that can leave out what cuBLASLt computes do so: --own), for instrumented kernels of cuBLASLt break off ("failed to handle a
# hardware exception"), as cuDNN's may. Not `--kernel-name`: the names of many of theirs end like ours (`..._kernel__5x_cublas`).
set -u

foreign="cublas gemm gemv nvjet cutlass cudnn nccl"

options_of() { # TOOL
    case $1 in
    racecheck | synccheck) for name in $foreign; do printf ' --kernel-name-exclude kernel_substring=%s' "$name"; done ;;
    esac
}

own_of() { # TOOL
    case $1 in
    racecheck) echo --own --race ;;
    synccheck) echo --own ;;
    esac
}

found_by() { # LOG: errors or hazards; nothing where the tool did not come to its end
    sed -n 's/^=* *\(ERROR\|RACECHECK\) SUMMARY: \([0-9]*\).*/\2/p' "$1" | tail -1
}

one() { # DIR TOOL[:SECONDS] PROGRAM
    limit=280
    case $2 in
    *:*) limit=${2#*:} ;;
    esac
    set -- "$1" "${2%%:*}" "$3"
    log=$LOGS/$2-$3.log
    began=$(date +%s)
    part=
    case $3 in
    *+*) part=--${3#*+} ;;
    esac
    # shellcheck disable=SC2046,SC2086 # several words
    timeout -k 5 "$limit" compute-sanitizer --tool "$2" $(options_of "$2") --error-exitcode 9 "$1/gpu_${3%%+*}" --small $part $(own_of "$2") >"$log" 2>&1
    status=$?
    passed=$(grep -v '^all OK$' "$log" | grep -cE '\bOK( |$)')
    failed=$(grep -cw FAIL "$log")
    found=$(found_by "$log")
    verdict=OK
    [ $status = 0 ] && [ "$passed" -gt 0 ] && [ "$failed" = 0 ] && [ "$found" = 0 ] || verdict=FAIL
    [ $status = 77 ] && verdict=skipped
    why=
    [ $status = 124 ] && why=", time is up"
    echo "$2 $3: $passed passed, $failed failed, ${found:-no end} found, $(($(date +%s) - began)) s$why: $verdict"
    [ $verdict != FAIL ] || { grep -aE 'Error|Race reported|Invalid|Uninit|FAIL' "$log" | head -5; exit 1; }
}

: "${JOBS:=9}" "${LOGS:=}"
export LOGS
if [ "${1:-}" = --one ]; then
    shift
    one "$@"
    exit
fi
dir=${1:?usage: sanitize.sh DIR [TOOL...]}
shift
[ $# -gt 0 ] || set -- memcheck initcheck racecheck
command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer: skipped"; exit 77; }
"$dir/gpu_steps" --small >/dev/null
[ $? != 77 ] || { echo "no CUDA device: skipped"; exit 77; }
if [ -z "$LOGS" ]; then
    LOGS=$(mktemp -d)
    trap 'rm -rf "$LOGS"' EXIT
fi
for tool in "$@"; do
    for name in ${PROGRAMS:-model strict attention+narrow attention+wide decode delta experts fp8 head kernels latent loss steps gemm}; do echo "$dir $tool $name"; done
done | xargs -n 3 -P "$JOBS" "$0" --one
