#!/bin/sh
# Tokens drafted on a CUDA device. With `strict: true` a rollout that drafts gives the samples and weights of one that does not, to the
# bit, and there is no gap to the update; without it, too, it repeats to the bit. Some drafts are accepted, and not all. Of models with
# windows, experts, latent attention and layers of the gated delta rule, whose state goes back, and of rows that are kept; conversations: turns.sh.
# The same where the layer of the checkpoint drafts that predicts a further token (mtp-*), within the planned bytes and resumed. Skips (77) where there is no device.
# usage: drafts.sh GRAPHRUN [CASE...]: of these cases alone
. "$(dirname "$0")/quickstart.sh"
shift
only=$*
steps=2
failed=0
fail() {
    echo "$*: FAIL"
    failed=1
}

drafts() { # FILE FROM KEYS: with drafts in the rollout
    sed "s/{op: generate, /{op: generate, speculate: {always: true, $3}, /" "$2" >"$1"
    grep -q speculate "$1" || { echo "no rollout in $2"; exit 1; }
}
run() { # OUT GRAPH OPTIONS...
    out=$work/$1
    graph=$2
    shift 2
    "$gr" exec "$graph" --device cuda --out "$out" --steps $steps --set run.samples=512 --set data="$work/train.jsonl" \
        --set nodes.rollout.max_tokens=50 --set nodes.rollout.ignore_eos=true "$@" >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
}
value() { # NAME RUN: of the last iteration
    grep -o "\"$1\": [^,}]*" "$work/$2/metrics.jsonl" | sed 's/.*: //' | tail -1
}
same() { # RUN RUN
    cmp "$work/$1/samples.jsonl" "$work/$2/samples.jsonl" || fail "the samples of $1 and $2 differ"
    cmp "$work/$1/checkpoints/step-2/actor/model.safetensors" "$work/$2/checkpoints/step-2/actor/model.safetensors" ||
        fail "the weights of $1 and $2 differ"
}
accepts() { # RUN
    awk -v d="$(value rollout.drafted "$1")" -v a="$(value rollout.accepted "$1")" 'BEGIN { exit !(a > 0 && a < d) }' ||
        fail "$1: accepted $(value rollout.accepted "$1") of $(value rollout.drafted "$1")"
}
form() { # NAME GRAPH KEYS OPTIONS...
    name=$1
    from=$2
    keys=$3
    shift 3
    case " ${only:-$name} " in *" $name "*) ;; *) return 0 ;; esac
    drafts "$work/$name.yaml" "$from" "$keys"
    if [ "$name" != kept ]; then # of kept rows another sequence may end first
        run $name-none "$from" --set strict=true "$@"
        run $name "$work/$name.yaml" --set strict=true "$@"
        same $name-none $name
        accepts $name
        [ "$(value logprob_gap_max $name)" = 0 ] || fail "$name: a gap of $(value logprob_gap_max $name)"
    fi
    run $name-a "$work/$name.yaml" "$@"
    run $name-b "$work/$name.yaml" "$@"
    same $name-a $name-b
    accepts $name-a
    echo "$name: accepted $(value rollout.accepted $name-a) of $(value rollout.drafted $name-a), tokens a step $(value \
        rollout.tokens_per_step $name-a)"
}
mtp() { # NAME KEYS OPTIONS...: the layer of the checkpoint drafts
    name=$1
    case " ${only:-$name} " in *" $name "*) ;; *) return 0 ;; esac
    keys=$2
    shift 2
    form $name $quick "from: mtp, $keys" "$@"
    [ "$(value measured_peak_bytes $name-a)" -le "$(value planned_peak_bytes $name-a)" ] || fail "$name: measured more than planned"
    grep -q '"actor_mtp.params.1"' "$work/$name-a/plan.json" || fail "$name: the layer is not in the plan"
    steps=1
    run $name-half "$work/$name.yaml" "$@"
    steps=2
    "$gr" exec --device cuda --resume "$work/$name-half" --steps 2 >"$work/$name.log" 2>&1 || { cat "$work/$name.log"; exit 1; }
    same $name-a $name-half
    echo "$name: peak planned $(value planned_peak_bytes $name-a), measured $(value measured_peak_bytes $name-a); resumed"
}
model_of() { # NAME TYPE CLASS KEYS [HEADS OF KEYS]
    cat >"$work/$1.json" <<END
{"architectures": ["$3ForCausalLM"], "model_type": "$2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": ${5:-2}, "vocab_size": 16, "max_position_embeddings": 256, "initializer_range": 0.15,
 "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, $4}
END
    "$gr" init --config "$work/$1.json" --tokenizer graphs/quickstart --seed 1 -o "$work/$1" >/dev/null
}

quick=graphs/quickstart.yaml
form ngram $quick "tokens: 4" --set model="$work/model"
form group $quick "tokens: 7, from: group, match: 1" --set model="$work/model"
form few $quick "tokens: 3, from: group" --set model="$work/model" --set nodes.rollout.concurrent=37
model_of phi3 phi3 Phi3 '"sliding_window": 16'
form phi3 $quick "tokens: 4, from: group" --set model="$work/phi3"
model_of olmoe olmoe Olmoe '"num_experts": 8, "num_experts_per_tok": 2'
form olmoe $quick "tokens: 4, from: group" --set model="$work/olmoe" --set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout
routed='"moe_intermediate_size": 32, "n_routed_experts": 12, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1'
latent="$routed"', "q_lora_rank": 48, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32'
model_of deepseek deepseek_v3 DeepseekV3 "$latent" 4
form deepseek $quick "tokens: 4, from: group" --set model="$work/deepseek"
delta='"head_dim": 256, "partial_rotary_factor": 0.25, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 64'
model_of hybrid qwen3_5_text Qwen3_5 "$delta" 1
form hybrid $quick "tokens: 4, from: group" --set model="$work/hybrid"
form hybrid-few $quick "tokens: 3, match: 1" --set model="$work/hybrid" --set nodes.rollout.concurrent=37
sed -e 's/{op: generate, /{op: generate, over: 1.5, /; s/schedule: linear, min_lr_ratio: 0.05, //' $quick >"$work/over.yaml"
form kept "$work/over.yaml" "tokens: 4, from: group" --set model="$work/model"
model_of mtp-hybrid qwen3_5_text Qwen3_5 "$delta"', "mtp_num_hidden_layers": 1' 1
mtp mtp-hybrid "tokens: 3" --set model="$work/mtp-hybrid"
model_of mtp-glm glm4_moe Glm4Moe "$routed"', "head_dim": 32, "use_qk_norm": true, "num_nextn_predict_layers": 1'
mtp mtp-glm "tokens: 1" --set model="$work/mtp-glm"
# Layers that are right wherever they read what they should: of greedy responses all is accepted, of sampled ones much.
for by in ids hidden; do
    case " ${only:-mtp-right mtp-few} " in *" mtp-right "* | *" mtp-few "*) ;; *) continue ;; esac
    cp -r "$work/mtp-glm" "$work/mtp-$by"
    python3 tests/gpu/mtp_right.py "$work/mtp-$by" $by
    drafts "$work/greedy.yaml" $quick "from: mtp, tokens: 3"
    run mtp-$by-greedy "$work/greedy.yaml" --set model="$work/mtp-$by" --set nodes.rollout.temperature=0 --set params.lr=0
    awk -v d="$(value rollout.drafted mtp-$by-greedy)" -v a="$(value rollout.accepted mtp-$by-greedy)" 'BEGIN { exit !(d > 0 && a > 0.98 * d) }' ||
        fail "a layer that is right by $by: accepted $(value rollout.accepted mtp-$by-greedy) of $(value rollout.drafted mtp-$by-greedy)"
    echo "right by $by: accepted $(value rollout.accepted mtp-$by-greedy) of $(value rollout.drafted mtp-$by-greedy), tokens a step $(value \
        rollout.tokens_per_step mtp-$by-greedy)"
done
mtp mtp-few "tokens: 4" --set model="$work/mtp-ids" --set nodes.rollout.concurrent=37
model_of mtp-deepseek deepseek_v3 DeepseekV3 "$latent"', "num_nextn_predict_layers": 1' 4
mtp mtp-deepseek "tokens: 2" --set model="$work/mtp-deepseek"
exit $failed
