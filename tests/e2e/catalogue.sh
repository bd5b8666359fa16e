#!/bin/sh
# Graphs of the catalogue as a user runs them: the algorithm that docs/LANGUAGE.md invents learns, and the gradient of
# every algorithm is the same however its mini-batch is cut into micro-batches.
. "$(dirname "$0")/lib.sh"

i=0
while [ $i -lt 32 ]; do # each answer begins with 3: what there is to learn
    echo "{\"question\": \"$((i % 10))+$((i / 10))=\", \"answer\": \"3\"}"
    i=$((i + 1))
done >three.jsonl
digit='{extract: "([0-9])", answer_extract: "([0-9])", compare: string, take: first}'

# ---- the tutorial's algorithm, as it stands there ---------------------------------------------------------------------

mkdir doc
awk '/^<!-- graphs\/crossroads.yaml -->$/ { getline; inside = 1; next } inside && /^```$/ { exit } inside' \
    "$project/docs/LANGUAGE.md" >doc/crossroads.yaml
has doc/crossroads.yaml '^graph: crossroads$'
status 0 "$gr" exec doc/crossroads.yaml --out novel --steps 30 --set model="$work/model" --set data="$work/three.jsonl" \
    --set nodes.prompts.max_tokens=8 --set batch=16 --set mini_batch=4 --set max_tokens=4 --set lr=2e-3 --set nodes.reward.rule="$digit" \
    --set 'nodes.prompts.template="{question}"'
rewards() { # FROM TO: a hundredth
    sed -nE 's/.*"reward_mean": ([0-9.e-]+).*/\1/p' novel/metrics.jsonl | sed -n "$1,$2p" |
        awk '{ s += $1 } END { printf "%d", 100 * s / NR }'
}
before=$(rewards 1 2) after=$(rewards 26 30)
[ "$before" -lt 60 ] && [ "$after" -gt 90 ] || fail "crossroads: the reward went from 0.$before to 0.$after"

# ---- preferences from a file -----------------------------------------------------------------------------------------

i=0
while [ $i -lt 32 ]; do # whatever is asked: 3, and not a longer 7
    echo "{\"prompt\": \"$((i % 10))+$((i / 10))=\", \"chosen\": \"3\", \"rejected\": \"77\"}"
    i=$((i + 1))
done >pairs.jsonl
set -- --set model="$work/model" --set data="$work/pairs.jsonl" --set batch=8 --set lr=1e-3 --set models.actor.train.warmup=0 \
    --set nodes.pairs.max_prompt_tokens=8 --set 'nodes.pairs.prompt="{prompt}"' --set epochs=5
status 2 "$gr" exec "$project/graphs/dpo.yaml" "$@" --set nodes.pairs.max_tokens=2 --out short
has err 'a response of 3 tokens, but node .pairs. allows 2'
status 0 "$gr" exec "$project/graphs/dpo.yaml" "$@" --set nodes.pairs.max_tokens=3 --out dpo
[ "$(metric dpo 1 update.margin)" = 0 ] || fail "dpo begins with a margin of $(metric dpo 1 update.margin)"
[ "$(metric dpo 20 update.right)" = 1 ] || fail "dpo: $(metric dpo 20 update.right) of the pairs are told apart"
"$gr" exec "$project/graphs/dpo.yaml" "$@" --set nodes.pairs.max_tokens=3 --set nodes.update.mini_batch=2 \
    --set nodes.update.micro_tokens=20 --steps 2 --out dpo-cut >out 2>err || fail "$(cat err)"

# ---- micro-batches ----------------------------------------------------------------------------------------------------

# One optimizer step from the same weights, by AdamW with eps 1 and lr 1: it moves each weight by g / (|g| + 1), which is
# the gradient where that is small, and never further apart than two gradients are. 32 responses of about 11 tokens:
# one micro-batch, 2, 3 and 8.
cp -r "$project/graphs" graphs
weights() { # RUN: one number a line
    file=$1/checkpoints/step-1/actor/model.safetensors
    header=$(od -An -N8 -t u8 "$file")
    tail -c +$((header + 9)) "$file" | od -An -v -w4 -t f4
}
step() { # GRAPH NAME SETTINGS...: the weights after one step
    file=$1 name=$2
    shift 2
    status 0 "$gr" exec "$file" --out "run-$name" --steps 1 --set model="$project/tests/cli/model/config.json" \
        --set data="$work/three.jsonl" --set batch=8 --set mini_batch=8 --set group=4 --set max_prompt=8 --set max_tokens=6 \
        --set nodes.reward.rule="$digit" --set 'nodes.prompts.template="{question}"' \
        --set models.actor.train.eps=1 --set models.actor.train.weight_decay=0 --set models.actor.train.grad_clip=0 "$@"
    weights "run-$name" >"$name.weights"
    rm -r "run-$name"
}
for g in grpo dr_grpo gspo cispo sapo gmpo gpg clip_cov kl_cov dppo_tv dppo_kl dro online_dpo rollout_correction bypass \
    bypass_reinforce; do
    step graphs/$g.yaml start --set lr=0
    step graphs/$g.yaml whole --set lr=1 --set nodes.update.micro_tokens=3000
    if [ "$slow" = 1 ]; then # a conversation of one turn is a response that nobody answers, whatever is trained on it
        step graphs/$g.yaml turn --set lr=1 --set nodes.update.micro_tokens=3000 --set nodes.rollout.turns=1 --set nodes.rollout.max_context=14 \
            --set "nodes.rollout.environment={command: \"perl $here/say.pl slow\"}"
        cmp whole.weights turn.weights || fail "$g: a conversation of one turn gives another gradient"
    fi
    for micro in 200 130 48; do
        step graphs/$g.yaml cut --set lr=1 --set nodes.update.micro_tokens=$micro
        paste start.weights whole.weights cut.weights | awk '
            { g = $2 - $1; d = $3 - $2; norm += g * g; off += d * d }
            END { exit !(norm > 0 && off <= 1e-10 * norm) }' || fail "$g: micro_tokens $micro gives another gradient"
    done
done
