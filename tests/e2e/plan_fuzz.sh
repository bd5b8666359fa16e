#!/bin/sh
# The planner on random legal graphs: shapes of 10M to 72B (dense, with experts, hybrid), one to 8,192 ranks, pools, budgets,
# policies, lag, critics, selections, bits. It ends with a plan or a refusal, the same twice; what is written is proven; it
# never takes more than the budget; the graph in the plan, planned again, gives the same plan; more memory is slower by a
# thousandth at most where the bits are the same; what a refusal says would fit does. GR_SLOW=1: 2,000 of them, each of
# GR_SECONDS (10) of one core and GR_MEGABYTES (300) at most, and a histogram of both. A graph that fails is printed; its
# number, as GR_SEED, makes it alone; with GR_LAST, from one number to the other.
. "$(dirname "$0")/lib.sh"
. "$here/random_plans.sh"

most=60 # seconds of one core of a command that does not end
[ -z "${GR_SANITIZED:-}" ] || most=900

# planned STATUS... -- OPTIONS: a plan in plan.json with any of these; its time and memory go to the table
planned() {
    allowed=
    while [ "$1" != -- ]; do
        allowed="$allowed $1"
        shift
    done
    shift
    code=0
    (ulimit -t $most && exec "$@" --format json -o plan.json) >out 2>err || code=$?
    case "$allowed " in *" $code "*) ;; *) tail -n 5 err >&2; fail "exit status $code: $*" ;; esac
}

measured() { # OPTIONS: `graphrun plan` with them, under the limits
    if [ "$slow" = 0 ]; then
        planned 0 2 3 -- "$gr" plan "$@"
        return
    fi
    planned 0 2 3 -- /usr/bin/time -f '%U %M' -o cost "$gr" plan "$@"
    tail -n 1 cost >>costs
    tail -n 1 cost | awk -v s="${GR_SECONDS:-10}" -v m="${GR_MEGABYTES:-300}" '{exit $1 > s || $2 > m * 1024}' ||
        echo "graph $i: $(tail -n 1 cost) seconds, KB: $*" | tee -a beyond
}

within() { # PLAN
    budget=$(json_number "$1" budget_bytes)
    for peak in $(peaks "$1"); do
        [ "$peak" -le "$budget" ] || fail "$peak bytes in a budget of $budget"
    done
}

# What a refusal says would fit does.
take_advice() {
    sed -nE 's/.*would fit: (--(host-)?budget [0-9]+( --host-budget [0-9]+)?) .*/\1/p' err | head -n 1 >advice
    [ -s advice ] || return 0
    # shellcheck disable=SC2046,SC2086
    planned 0 -- "$gr" plan g.yaml $1 $(cat advice)
    within plan.json
}

again() { # OPTIONS: the same plan twice, and of the graph that it holds
    cp plan.json first.json
    planned 0 -- "$gr" plan g.yaml "$@"
    cmp -s first.json plan.json || fail "two plans of one graph"
    status 0 "$gr" verify first.json
    sed -nE 's/^ "graph_text": "(.*)",$/\1/p' first.json | sed 's/\\"/"/g' >text
    printf '%b' "$(cat text)" >resolved.yaml
    planned 0 -- "$gr" plan resolved.yaml "$@"
    [ "$(numerics first.json) $(seconds first.json)" = "$(numerics plan.json) $(seconds plan.json)" ] ||
        fail "another plan of the resolved graph"
}

# More of the budget: slower by a thousandth at most, of two roles by one of each, where the bits are the same; where any may
# be taken, in any case.
more_is_faster() { # BUDGET OPTIONS
    less=$1
    shift
    before=$(seconds first.json)
    planned 0 3 -- "$gr" plan g.yaml "$@" --budget $((less + less / 8))
    [ $code = 0 ] || fail "it fits in $less bytes, and not in an eighth more"
    within plan.json
    after=$(seconds plan.json)
    [ "$bits" = any ] || [ "$(numerics first.json)" = "$(numerics plan.json)" ] || return 0
    [ "$after" -le $((before + (1 + pools) * (before / 1000) + 1)) ] || {
        echo "graph $i: $before ns in $less bytes, $after ns in an eighth more" | tee -a slower
    }
}

try_graph() { # NUMBER
    random_graph "$1" g.yaml
    # shellcheck disable=SC2086
    set -- $how
    measured g.yaml "$@"
    if [ $code = 0 ] && [ "$part" != 0 ]; then # a budget between what is taken and a part of it
        peak=$(json_number plan.json peak_bytes)
        less=$((peak - peak * part / 8))
        measured g.yaml "$@" --budget $less
        if [ $code != 0 ]; then
            take_advice "$*"
            echo refused >>kinds
            return 0
        fi
        again "$@" --budget $less
        within first.json
        more_is_faster $less "$@"
    elif [ $code = 0 ]; then
        again "$@"
        within first.json
    elif [ $code = 3 ]; then
        take_advice "$*"
        echo refused >>kinds
        return 0
    else
        echo illegal >>kinds
        return 0
    fi
    echo planned >>kinds
}

numbers="5 111 127" # a refusal, a select's rounds under `transition`, loads that wait for nothing in the plan
[ "$slow" = 0 ] || numbers=$(seq 1 2000)
[ -z "${GR_SEED-}" ] || numbers=$(seq "$GR_SEED" "${GR_LAST:-$GR_SEED}")
: >kinds
: >costs
: >slower
: >beyond
n=0
for i in $numbers; do
    (try_graph "$i") || { cat g.yaml policy.json >&2; fail "random graph $i"; }
    n=$((n + 1))
done
sort kinds | uniq -c
[ "$n" = 1 ] || [ "$(grep -c planned kinds)" -gt $((n / 4)) ] || fail "hardly any of them is planned"
[ ! -s costs ] || awk '{s = $1; m = $2 / 1024
    a = s < 0.1 ? "0.1" : s < 0.3 ? "0.3" : s < 1 ? "1" : s < 3 ? "3" : s < 10 ? "10" : "more"; t[a]++
    b = m < 10 ? "10" : m < 30 ? "30" : m < 100 ? "100" : m < 300 ? "300" : "more"; k[b]++
    if (s > ms) ms = s; if (m > mm) mm = m}
    END {printf "seconds below:"; for (a in t) printf " %s: %d,", a, t[a]; printf " most %.1f\nMB below:", ms
        for (b in k) printf " %s: %d,", b, k[b]; printf " most %.0f\n", mm}' costs
[ ! -s beyond ] || fail "beyond the limits: $(wc -l <beyond)"
[ ! -s slower ] || fail "slower in more memory: $(wc -l <slower)"
