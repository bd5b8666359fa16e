#!/bin/sh
# Pools of ranks: one graph colocated and split, its plans made, proven, shown and compared; on one rank it runs.
. "$(dirname "$0")/lib.sh"

pools() { # GRAPH POOLS: a file that puts the actor, its rollout and the reference on pools
    cat >"$1" <<END
graph: tiny
use: grpo.yaml
params: {lag: 0}
pools: {$2}
models: {actor: {pool: train}, ref: {pool: reference}}
nodes: {rollout: {pool: rollout, lag: \$lag}}
END
}
pools colocated.yaml "train: {share: 1}, rollout: {with: train}, reference: {with: train}"
pools split.yaml "train: {share: 1}, rollout: {share: 1}, reference: {with: rollout}"
numerics() { sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' "$1"; }
predicted() { sed -nE 's/.*"fits": true, "seconds": ([0-9.]+).*/\1/p' "$1"; }

# Colocated pools are no pools: the same plan, but for the text of its graph.
for ranks in 1 4; do
    status 0 "$gr" plan grpo.yaml --ranks $ranks --format json -o plain.json
    status 0 "$gr" plan colocated.yaml --ranks $ranks --format json -o colocated.json
    [ "$(sed -n '/"ranks": \[/,$p' plain.json)" = "$(sed -n '/"ranks": \[/,$p' colocated.json)" ] || fail "colocated pools change a plan"
done
[ "$(numerics plain.json)" = "$(numerics colocated.json)" ] || fail "colocated pools change the bits"

# On one rank every pool is that rank: the split file trains, and the bits are those without pools.
status 0 "$gr" exec grpo.yaml --steps 2 --out plain
status 0 "$gr" exec split.yaml --steps 2 --out one
same_weights plain one
same_metrics plain one

for ranks in 2 4 2x4 128x8; do
    for lag in 0 1; do
        status 0 "$gr" plan split.yaml --ranks $ranks --set lag=$lag --hardware h200 --format json -o split.$lag.json
        status 0 "$gr" verify split.$lag.json
        has out 'proven: 2 roles of ranks'
    done
    a=$(predicted split.0.json) b=$(predicted split.1.json)
    echo "$a $b" | awk '{ exit !($2 < $1) }' || fail "a rollout that lags saves nothing: $a, $b"
    [ "$(numerics split.0.json)" != "$(numerics split.1.json)" ] || fail "lag is no part of the numerics"
done
has split.0.json '"ranks": "0-511", "pools": "train"'
has split.0.json '"ranks": "512-1023", "pools": "rollout, reference"'
has split.0.json '"hosts": 128'

# Who sends what: weights to the rollout, rows and log-probs back; state is followed on both.
status 0 "$gr" plan split.yaml --ranks 4 --format json -o split.json
has split.json '"kind": "send", "what": "rollout.to.1.actor.params.1"'
has split.json '"kind": "recv", "what": "rollout.from.0.actor.rollout.1"'
has split.json '"kind": "recv", "what": "rollout.from.1.rollout.rows", .*"after": \[([0-9]+, )?"1:[0-9]+"\]'
has split.json '"kind": "recv", "what": "ref_logprob.from.1.ref_logprob"'
[ "$(grep -c '"what": "iteration.summary"' split.json)" = 2 ] || fail "each class ends the iteration where there is state"

# Edited plans, each refused with the rule.
sed -E '0,/"after": \["1:[0-9]+"\]/s//"after": ["1:0"]/' split.json >b.json
refused "b.json|crossings" "$gr" verify b.json
has err "'crossings'"
sed -E '0,/"after": \["1:[0-9]+"\]/s//"after": []/' split.json >b.json
refused 'steps\[[0-9]+\].after: a recv waits for its send' "$gr" verify b.json
sed 's/"ranks": "2-3"/"ranks": "1-2"/' split.json >b.json
refused 'role 1 of the plan is of ranks 1-2, that of the graph.s pools of ranks 2-3' "$gr" verify b.json
sed 's/"hosts": 1/"hosts": 0/; s/share: 1/share: 3/' split.json >b.json
refused 'b.json|ranks' "$gr" verify b.json
sed 's/"peak_bytes": \([0-9]*\), "budget/"peak_bytes": 1\1, "budget/' split.json >b.json
refused 'peak_bytes: is not the highest of the ranks' "$gr" verify b.json

# Shown in every form, and compared in words.
status 0 "$gr" plan split.yaml --ranks 4
has out '^0-1 +train '
has out '^2-3 +rollout, reference '
has out '^ranks 2-3: rollout, reference$'
status 0 "$gr" plan split.yaml --ranks 4 --format csv
has out '^class,i,kind,what'
has out '^1,[0-9]+,recv,rollout.from.0.actor.rollout.0,rollout,comm'
status 0 "$gr" plan split.yaml --ranks 4 --format dot
has out 'subgraph cluster_1'
has out 'label="ranks 2-3: rollout, reference"'
status 0 "$gr" plan split.yaml --ranks 4 --format svg
has out 'ranks 0-1: train'
status 0 "$gr" plan split.yaml --ranks 4 --format html
has out '"class:step"|data-class'
status 0 "$gr" diff colocated.json split.json
has out '^ranks +0-3 -> 0-1 train; 2-3 rollout, reference$'
has out 'added +send actor weights: none'
status 0 "$gr" plan split.yaml --sweep ranks=2..4:2 --format csv
[ "$(sed -n '3s/^4,yes,\([0-9]*\),.*/\1/p' out)" = "$(json_number split.json peak_bytes)" ] || fail "the sweep has not the highest peak"

# A trained critic and a judge of their own, the update sometimes left out, validations between iterations.
ppo_graph ppo.yaml
classifier judge model
cat >four.yaml <<'END'
graph: four
use: ppo.yaml
pools: {train: {share: 1}, rollout: {share: 1, models: 1}, critic: {ranks: 2, same_node: true}, judge: {ranks: 1}, ref: {with: train}}
models: {actor: {pool: train}, critic: {pool: critic}, judge: {pool: judge}, ref: {pool: ref}}
nodes:
  rollout: {pool: rollout}
  check_prompts: {op: prompts, file: $data, batch: 4, max_tokens: 8, template: "{question}", every: 2}
  check: {op: generate, model: actor, prompts: check_prompts, temperature: 0, max_tokens: 6, pool: rollout}
  solved: {op: score, model: judge, of: check}
END
for policy in auto keep transition every_node; do
    status 0 "$gr" plan four.yaml --ranks 7 --policy $policy --format json -o four.json
    status 0 "$gr" verify four.json
    has out 'proven: 4 roles of ranks'
done
has four.json '"what": "check.from.3.check.rows"'

# All that crosses, as it did: who, what, bytes. GR_UPDATE_GOLDEN=1 writes it anew.
golden=$project/tests/golden/pools.csv
for plan in "split.yaml 4 0" "split.yaml 4 1" "four.yaml 7 0"; do
    # shellcheck disable=SC2086
    set -- $plan
    lag=
    [ "$1" = four.yaml ] || lag="--set lag=$3"
    # shellcheck disable=SC2086
    status 0 "$gr" plan "$1" --ranks "$2" $lag --hardware "$project/tests/golden/hardware.json" --format csv
    echo "# $plan"
    grep -E ',(send|recv),' out | cut -d, -f1,3,4,9
done >crossings.csv
[ -z "${GR_UPDATE_GOLDEN-}" ] || cp crossings.csv "$golden"
diff -u "$golden" crossings.csv || fail "other things cross"

# What cannot be, with its place.
refused 'split.yaml:4:.*of 1 shares|four.yaml:3:.*needs' "$gr" plan four.yaml --ranks 2
refused 'four.yaml:3:.*pool .critic. needs 2 ranks of one host; no host of 1 devices' "$gr" plan four.yaml --ranks 7x1
pools wrong.yaml "train: {at: 0-2}, rollout: {at: 2-3}, reference: {with: train}"
refused 'wrong.yaml:4:.*both have rank 2, but are not the same ranks' "$gr" plan wrong.yaml --ranks 4
status 3 "$gr" plan split.yaml --ranks 4 --budget 3300KiB
has err 'on a rank of pool rollout, reference, ranks 2-3'
refused 'the plan is for ranks 0-1 and other roles, not for 1' "$gr" exec split.yaml --plan split.json --out two
[ ! -e two ]

# Weights that are loaded before they are sent: what the thread of loads waited for, the thread that sends knows. (This plan was
# refused by the verifier: the number of trips lies where a score was.)
cat >large.json <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
 "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": true, "initializer_range": 0.02, "bos_token_id": 1,
 "eos_token_id": 2, "torch_dtype": "bfloat16"}
END
cat >large.yaml <<'END'
graph: large
pools: {train: {share: 1}, rollout: {share: 1}}
models:
  actor: {checkpoint: large.json, train: {master: none, moments: bf16, lr: 1.0e-6}}
  judge: {checkpoint: large.json}
nodes:
  prompts: {op: prompts, file: none.jsonl, batch: 128, max_tokens: 256, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 8, max_tokens: 128, pool: rollout, lag: 1}
  reward: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: '(.)', compare: string}}
  old: {op: logprob, model: actor, of: rollout}
  judged: {op: logprob, model: judge, of: rollout}
  score: {op: compute, of: rollout, expr: reward + 0.1 * seq_mean(judged)}
  advantage: {op: compute, of: rollout, expr: (score - group_mean(score)) / (group_std(score) + 1e-6)}
  update: {op: update, model: actor, of: rollout, mini_batch: 32, loss: token_mean(-advantage * exp(logprob - old))}
run: {steps: 3}
END
status 0 "$gr" plan large.yaml --hardware a100-80g --ranks 2x8 --policy every_node --host-budget 32GiB

# Of one role the hosts matter, too: for what messages within a host take of memory, and those between hosts of time.
for way in actor.parallel.pipeline=2 actor.parallel.context=4 actor.shard=node; do
    status 0 "$gr" plan grpo.yaml --device cuda --hardware h200 --ranks 2x2 --set models.$way --format json -o two_hosts.json
    has two_hosts.json '"hosts": 2'
    status 0 "$gr" verify two_hosts.json
done
status 0 "$gr" plan grpo.yaml --device cuda --hardware h200 --ranks 2 --format json -o one_host.json
lacks one_host.json '"hosts"'
