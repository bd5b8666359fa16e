#!/bin/sh
# Rewards: rules by a field, a value a token, and commands that behave and that do not.
. "$(dirname "$0")/lib.sh"

# The text that replaces the reward node's rule; what the update reads of it.
with() { # FILE REWARD-KEYS SCORE [STEPS]
    sed "s/^  reward: .*/  reward: {op: reward, of: rollout, $2}/; s/^  score: .*/  score: {op: compute, of: rollout, expr: \"$3\"}/" \
        grpo.yaml >$1
}

# The samples show whether each sequence got its own digits.
digit_worker
with worker.yaml 'command: "sh count.sh", workers: 2' 'reward'
sed -i 's/samples: 2/samples: 32/' worker.yaml
status 0 "$gr" exec worker.yaml --out worker
sed -E 's/.*"response": "([^"]*)", "reward": ([^,}]*).*/\1 \2/' worker/samples.jsonl >pairs
[ "$(wc -l <pairs)" = 48 ] || fail "$(wc -l <pairs) samples of 6 iterations of 8 prompts"
awk '{ reward = $NF; n = NF == 2 ? gsub(/[0-9]/, "", $1) : 0; if (n != reward) { print; bad = 1 } } END { exit bad }' pairs ||
    fail "rewards are not of their sequences"
status 0 "$gr" exec worker.yaml --set nodes.reward.workers=5 --out workers
same_weights worker workers

# In plain sh, with names, and a value a token.
cat >names.sh <<'END'
while read -r line; do
    id=${line#*\"id\":}
    id=${id%%[,\}]*}
    case $line in *'"response":"'[0-9]*) digit=1 ;; *) digit=0 ;; esac
    printf '{"id": %d, "score": {"digit": %d, "format": 0.5, "else": 7}}\n' "$id" $digit
done
END
with names.yaml 'command: "sh names.sh", names: [digit, format]' 'reward.digit + rollout.length * reward.format'
status 0 "$gr" exec names.yaml --steps 2 --out names
with token.yaml 'level: token, answer: prompts.answer, rule: {compare: prefix}' 'seq_sum(reward) + 0.1 * rollout.length'
status 0 "$gr" exec token.yaml --steps 2 --out token

# A command that pays tokens is told their ids and where they stand: the worker that LANGUAGE.md shows pays those of the
# answer, here the first digit of the response; one number too few is said.
cat >told.sh <<'END'
while read -r line; do
    echo "$line" >>asked
    id=${line#*\"id\":}
    tokens=${line#*\"tokens\":[}
    tokens=${tokens%%]*}
    [ -z "${1:-}" ] || tokens=${tokens#*,}
    printf '{"id": %d, "score": [%s]}\n' "${id%%[,\}]*}" "$tokens"
done
END
with told.yaml 'level: token, command: "sh told.sh"' 'seq_sum(abs(reward - rollout.token)) + 0.1 * rollout.length'
sed -i '$ a log: {off: token_sum(abs(reward - rollout.token))}' told.yaml
status 0 "$gr" exec told.yaml --steps 2 --out told
[ "$(metric told 1 off) $(metric told 2 off)" = '0 0' ] || fail "a worker is told other tokens: $(metric told 1 off)"
has asked '"tokens":\[[0-9,]+\],"offsets":\[\[0,[0-9]+\]'
with few.yaml 'level: token, command: "sh told.sh few"' 'seq_sum(reward)'
status 1 "$gr" exec few.yaml --steps 1 --out few
has err "error: sequence [0-9]+: bad reply of the reward worker: 'score' has [0-9]+ numbers, but the response has [0-9]+ tokens: "
has err "train.jsonl:[0-9]+:1: note: the record that it answers"
if python3 -c 'import json' 2>/dev/null; then
    awk '/^<!-- a worker -->$/ { getline; inside = 1; next } inside && /^```$/ { exit } inside' "$project/docs/LANGUAGE.md" >pay.py
    sed -E 's/"answer": "[0-9]+"/"answer": "3"/' train.jsonl >threes.jsonl
    with pay.yaml 'level: token, answer: prompts.answer, command: "python3 pay.py"' 'seq_sum(reward) + 0.1 * rollout.length'
    sed -i '$ a log: {paid: token_sum(reward), others: "token_sum(reward, rollout.token != token('\''3'\''))"}' pay.yaml
    status 0 "$gr" exec pay.yaml --set data=threes.jsonl --steps 2 --out pay
    awk -v paid="$(metric pay 1 paid)" -v others="$(metric pay 1 others)" 'BEGIN { exit !(paid > 0 && others == 0) }' ||
        fail "the documented worker pays $(metric pay 1 paid) tokens, $(metric pay 1 others) of them others"
else
    echo "the documented worker is left out: no python3"
fi

# Rules by a field of the record.
sed 's/"answer"/"kind": "one", "answer"/; n; s/"answer"/"kind": "two", "answer"/' train.jsonl >kinds.jsonl
rules='answer: prompts.answer, rules: {by: kind, one: exact, two: {extract: "([0-9])", answer_extract: "([0-9])", compare: number}}'
with rules.yaml "$rules" 'reward + 0.1 * rollout.length'
status 0 "$gr" exec rules.yaml --set data=kinds.jsonl --steps 2 --out rules
sed '5s/"two"/"three"/;6s/"two"/"three"/' kinds.jsonl >three.jsonl
with missing.yaml "$rules" reward
status 2 "$gr" exec missing.yaml --set data=three.jsonl --set run.steps=2000 --out missing
has err "three.jsonl:[56]:.*'three'"

# Workers that fail in the second iteration: status 1, the sequence and the trouble in the message, and the run
# directory goes on with a worker that works.
cat >bad.sh <<'END'
echo x >>starts
n=0
while read -r line; do
    id=${line#*\"id\":}
    id=${id%%[,\}]*}
    n=$((n + 1))
    if [ $n -gt 40 ] || [ "$(wc -l <starts)" -gt 1 ]; then
        case $1 in
        hang) sleep 60 ;;
        die) exit 3 ;;
        flood) yes | tr -d '\n' ;;
        nonsense) echo 'what?' && continue ;;
        other) echo '{"id": 999, "score": 1}' && continue ;;
        nan) echo "{\"id\": $id, \"score\": NaN}" && continue ;;
        text) echo "{\"id\": $id, \"score\": \"good\"}" && continue ;;
        large) echo "{\"id\": $id, \"score\": 1e39}" && continue ;;
        list) echo "{\"id\": $id, \"score\": [1, 2]}" && continue ;;
        esac
    fi
    printf '{"id": %d, "score": %d}\n' "$id" $((id % 3))
done
END
for how in hang die flood nonsense other nan text large list; do
    rm -f starts
    with bad.yaml "command: \"sh bad.sh $how\", timeout: 1" reward
    began=$(date +%s)
    status 1 "$gr" exec bad.yaml --set run.checkpoint.every=1 --out $how
    [ $(($(date +%s) - began)) -lt 15 ] || fail "$how took too long to be noticed"
    has err 'error: sequence [0-9]+: '
    [ "$(wc -l <$how/metrics.jsonl)" = 1 ] || fail "$how: metrics of $(wc -l <$how/metrics.jsonl) steps"
    [ "$(last_step $how)" = 1 ] || fail "$how: checkpoints $(ls $how/checkpoints)"
    with good.yaml "command: \"sh bad.sh well\", timeout: 20" reward
    status 0 "$gr" exec good.yaml --resume $how --steps 2
    [ "$(wc -l <$how/metrics.jsonl)" = 2 ] || fail "$how: cannot be resumed"
done
sleep 0.2
for p in /proc/[0-9]*; do
    [ "$(readlink "$p/cwd" || :)" = "$work" ] || continue
    if tr '\0' ' ' <"$p/cmdline" | grep -q 'bad[.]sh'; then fail "a worker outlives the run: process ${p#/proc/}"; fi
done
# A worker that dies now and then is started again.
cat >frail.sh <<'END'
n=0
while read -r line; do
    id=${line#*\"id\":}
    printf '{"id": %d, "score": %d}\n' "${id%%[,\}]*}" $((${id%%[,\}]*} % 3))
    n=$((n + 1))
    [ $n -lt 7 ] || exit 1
done
END
with frail.yaml 'command: "sh frail.sh"' reward
status 0 "$gr" exec frail.yaml --out frail
with well.yaml 'command: "sh bad.sh well"' reward
status 0 "$gr" exec well.yaml --out well
same_weights well frail
with absent.yaml 'command: "no-such-program"' reward
status 1 "$gr" exec absent.yaml --out absent
has err 'error: sequence [0-9]+: '
with misspelt.yaml 'command: "sh names.sh", names: [digit, format]' 'reward.digits'
refused "unknown name 'reward.digits'" "$gr" check misspelt.yaml

# Ctrl-C goes to the whole group of a terminal; workers finish the step all the same.
setsid "$gr" exec well.yaml --steps 100000 --out interrupted >out 2>err &
pid=$!
while [ ! -s interrupted/metrics.jsonl ]; do sleep 0.02; done
kill -INT -$pid
wait $pid || fail "exit status $? after Ctrl-C: $(cat err)"
[ "$(last_step interrupted)" = "$(wc -l <interrupted/metrics.jsonl)" ] || fail "Ctrl-C lost steps"

# Several requests in flight: a grader that reads eight at once and answers them in one line, last first, gives what one
# gives that is asked for each.
cat >batch.pl <<'END'
use strict; $| = 1;
my ($in, @asked) = ("");
while (sysread(STDIN, $in, 1 << 20, length $in)) {
    while ($in =~ s/^([^\n]*)\n//) {
        my $line = $1;
        my ($id) = $line =~ /"id":(\d+)/;
        my ($response) = $line =~ /"response":"([^"]*)"/;
        $line =~ /"tokens":\[[0-9,]*\],"offsets"|"offsets":.*"tokens"/ or exit 9;
        push @asked, sprintf "{\"id\": %d, \"score\": %d}", $id, $response =~ tr/0-9//;
    }
    print "[", join(", ", reverse @asked), "]\n" if @asked;
    open(my $log, ">>", "most"); print $log scalar(@asked), "\n"; close $log;
    @asked = ();
    select(undef, undef, undef, 0.005);
}
END
with batch.yaml 'command: "perl batch.pl", in_flight: 8' 'reward'
sed -i 's/samples: 2/samples: 32/' batch.yaml
status 0 "$gr" exec batch.yaml --out batch
same_weights worker batch
awk '$1 > 1 { several = 1 } $1 > 8 { exit 1 } END { exit !several }' most || fail "a worker never had several requests, or more than 8"
