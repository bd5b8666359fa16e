#!/usr/bin/env python3
"""Step times that others have published, beside what plans predict for the same model, batch and machines.

    tests/bench/bench_published.py GRAPHRUN > table.md        (plans only: any machine, a few minutes)

Every row is one `graphrun plan` with a profile as it is shipped, and nothing is fitted to any. The rows are all of their kind:
of torchtitan every bf16 row that shards data alone (FSDP2, the fastest of those that differ in compilation or in what is
recomputed), of llm-foundry every bf16 row of MPT-1B and larger at 2,048 tokens.
Two things are compared. The step itself says how fast kernels and plan are, theirs and ours, which differ; the share of a
GPU's rate that is kept on more hosts says what the network costs, and that is what the prices of collectives are for.
"""
import json
import os
import subprocess
import sys
import tempfile

LLAMA = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", rms_norm_eps=1e-5,
             rope_theta=500000.0, rope_scaling=None, max_position_embeddings=131072, attention_bias=False,
             bos_token_id=1, eos_token_id=2, torch_dtype="bfloat16")


def llama(hidden, layers, heads, kv, width, vocabulary, tied=False):
    return dict(LLAMA, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv, intermediate_size=width, vocab_size=vocabulary, head_dim=hidden // heads,
                tie_word_embeddings=tied)


def mpt(hidden, layers):
    """MPT's two matrices of 4 x hidden, as three of as many elements together: the same arithmetic and bytes."""
    return llama(hidden, layers, hidden // 128, hidden // 128, round(8 * hidden / 3 / 64) * 64, 50368, True)


QWEN3 = dict(LLAMA, architectures=["Qwen3ForCausalLM"], model_type="qwen3", rope_theta=1e6)
MODELS = {
    "Llama-3.1-8B": llama(4096, 32, 32, 8, 14336, 128256),
    "Llama-3-70B": llama(8192, 80, 64, 8, 28672, 128256),
    "Llama-2-13B": llama(5120, 40, 40, 40, 13824, 32000),
    "Llama-2-70B": llama(8192, 80, 64, 8, 28672, 32000),
    "Qwen3-32B": dict(QWEN3, hidden_size=5120, num_hidden_layers=64, num_attention_heads=64, num_key_value_heads=8,
                      intermediate_size=25600, vocab_size=151936, head_dim=128, tie_word_embeddings=False),
    "MPT-1B": mpt(2048, 24), "MPT-3B": mpt(2560, 32), "MPT-7B": mpt(4096, 32),
    "MPT-13B": mpt(5120, 40), "MPT-30B": mpt(7168, 48), "MPT-70B": mpt(8192, 80),
}

# A step of training: source, model, hardware, GPUs, tokens a sequence, sequences a micro-batch and GPU, micro-batches,
# their recomputation, gradients, published tokens a second and GPU. A row is compared with the first one before it that has
# the same source, model, hardware and work a GPU.
TITAN, TITAN_OLD, FOUNDRY = "torchtitan 2024-12", "torchtitan docs", "llm-foundry"
TRAINING = [
    (TITAN, "Llama-3.1-8B", "h100-80g", 8, 8192, 2, 1, "selective", "fp32", 6667),
    (TITAN, "Llama-3.1-8B", "h100-80g", 128, 8192, 2, 1, "selective", "fp32", 6514),
    (TITAN_OLD, "Llama-3.1-8B", "a100-80g", 64, 8192, 1, 1, "selective", "fp32", 2973),
    (TITAN_OLD, "Llama-3-70B", "a100-80g", 64, 8192, 1, 1, "all", "fp32", 331),
    (TITAN_OLD, "Llama-2-13B", "a100-80g", 64, 4096, 2, 1, "none", "fp32", 2162),
    (TITAN_OLD, "Llama-2-70B", "a100-80g", 64, 4096, 2, 1, "all", "fp32", 353),
    (FOUNDRY, "MPT-1B", "h100-80g", 8, 2048, 14, 1, "none", "fp32", 45455),
    (FOUNDRY, "MPT-1B", "h100-80g", 16, 2048, 20, 1, "none", "fp32", 46037),
    (FOUNDRY, "MPT-1B", "h100-80g", 32, 2048, 20, 1, "none", "fp32", 45130),
    (FOUNDRY, "MPT-1B", "h100-80g", 64, 2048, 20, 1, "none", "fp32", 44402),
    (FOUNDRY, "MPT-3B", "h100-80g", 16, 2048, 10, 3, "none", "fp32", 24142),
    (FOUNDRY, "MPT-3B", "h100-80g", 32, 2048, 6, 3, "none", "fp32", 23021),
    (FOUNDRY, "MPT-3B", "h100-80g", 64, 2048, 6, 3, "none", "fp32", 22525),
    (FOUNDRY, "MPT-7B", "h100-80g", 8, 2048, 6, 1, "none", "fp32", 10643),
    (FOUNDRY, "MPT-13B", "h100-80g", 8, 2048, 2, 1, "none", "fp32", 4792),
    (FOUNDRY, "MPT-13B", "h100-80g", 16, 2048, 2, 1, "none", "fp32", 4767),
    (FOUNDRY, "MPT-13B", "h100-80g", 32, 2048, 2, 1, "none", "fp32", 4811),
    (FOUNDRY, "MPT-13B", "h100-80g", 64, 2048, 2, 1, "none", "fp32", 4800),
    (FOUNDRY, "MPT-30B", "h100-80g", 8, 2048, 3, 21, "all", "fp32", 2002),
    (FOUNDRY, "MPT-30B", "h100-80g", 16, 2048, 10, 3, "all", "fp32", 2263),
    (FOUNDRY, "MPT-30B", "h100-80g", 32, 2048, 14, 3, "all", "fp32", 2308),
    (FOUNDRY, "MPT-70B", "h100-80g", 32, 2048, 2, 16, "all", "fp32", 882),
    (FOUNDRY, "MPT-70B", "h100-80g", 64, 2048, 8, 4, "all", "fp32", 1039),
    (FOUNDRY, "MPT-1B", "a100-80g", 8, 2048, 14, 4, "none", "fp32", 20513),
    (FOUNDRY, "MPT-3B", "a100-80g", 8, 2048, 10, 2, "none", "fp32", 10811),
    (FOUNDRY, "MPT-7B", "a100-80g", 8, 2048, 6, 2, "none", "fp32", 4641),
    (FOUNDRY, "MPT-13B", "a100-80g", 8, 2048, 2, 3, "none", "fp32", 2262),
    (FOUNDRY, "MPT-30B", "a100-80g", 8, 2048, 3, 21, "all", "fp32", 916),
    (FOUNDRY, "MPT-70B", "a100-80g", 32, 2048, 2, 16, "all", "bf16", 373),
    (FOUNDRY, "MPT-70B", "a100-80g", 64, 2048, 8, 4, "all", "bf16", 410),
    (FOUNDRY, "MPT-1B", "a100-40g", 8, 2048, 8, 8, "none", "bf16", 19271),
    (FOUNDRY, "MPT-1B", "a100-40g", 16, 2048, 8, 1, "none", "bf16", 19085),
    (FOUNDRY, "MPT-1B", "a100-40g", 32, 2048, 10, 1, "none", "bf16", 15555),
    (FOUNDRY, "MPT-1B", "a100-40g", 64, 2048, 10, 1, "none", "bf16", 19001),
    (FOUNDRY, "MPT-1B", "a100-40g", 128, 2048, 10, 1, "none", "bf16", 18647),
    (FOUNDRY, "MPT-3B", "a100-40g", 8, 2048, 5, 8, "none", "bf16", 10065),
    (FOUNDRY, "MPT-3B", "a100-40g", 16, 2048, 5, 1, "none", "bf16", 9750),
    (FOUNDRY, "MPT-3B", "a100-40g", 32, 2048, 6, 1, "none", "bf16", 9914),
    (FOUNDRY, "MPT-3B", "a100-40g", 64, 2048, 6, 1, "none", "bf16", 9736),
    (FOUNDRY, "MPT-3B", "a100-40g", 128, 2048, 6, 1, "none", "bf16", 9538),
    (FOUNDRY, "MPT-7B", "a100-40g", 8, 2048, 12, 4, "all", "bf16", 3679),
    (FOUNDRY, "MPT-7B", "a100-40g", 16, 2048, 16, 1, "all", "bf16", 3645),
    (FOUNDRY, "MPT-7B", "a100-40g", 32, 2048, 18, 1, "all", "bf16", 3725),
    (FOUNDRY, "MPT-7B", "a100-40g", 64, 2048, 18, 1, "all", "bf16", 3665),
    (FOUNDRY, "MPT-7B", "a100-40g", 128, 2048, 18, 1, "all", "bf16", 3623),
    (FOUNDRY, "MPT-13B", "a100-40g", 8, 2048, 4, 16, "all", "bf16", 1668),
    (FOUNDRY, "MPT-13B", "a100-40g", 16, 2048, 10, 1, "all", "bf16", 1993),
    (FOUNDRY, "MPT-13B", "a100-40g", 32, 2048, 14, 1, "all", "bf16", 1998),
    (FOUNDRY, "MPT-13B", "a100-40g", 64, 2048, 16, 1, "all", "bf16", 1976),
    (FOUNDRY, "MPT-13B", "a100-40g", 128, 2048, 16, 1, "all", "bf16", 1972),
    (FOUNDRY, "MPT-30B", "a100-40g", 32, 2048, 4, 1, "all", "bf16", 857),
    (FOUNDRY, "MPT-30B", "a100-40g", 128, 2048, 6, 1, "all", "bf16", 865),
    (FOUNDRY, "MPT-70B", "a100-40g", 64, 2048, 2, 1, "all", "bf16", 276),
    (FOUNDRY, "MPT-70B", "a100-40g", 128, 2048, 4, 1, "all", "bf16", 376),
]
# A GRPO iteration: model, hardware, GPUs, prompts, samples, tokens of a prompt and of a response, published seconds.
GRPO = [
    ("Llama-3.1-8B", "h100-80g", 16, 64, 32, 128, 932, 97.7),
    ("Qwen3-32B", "h100-80g", 32, 64, 32, 128, 3128, 323.0),
]

UPDATE = """graph: published
params: {sequences: 1, tokens: 1, micro: 1, grads: fp32}
models:
  actor: {checkpoint: config.json, shard: all, train: {lr: 1.0e-5, grads: $grads, moments: fp32, master: fp32}}
nodes:
  rows: {op: sequences, file: none.jsonl, batch: $sequences, prompt: "{a}", response: "{b}", max_prompt_tokens: 1, max_tokens: $tokens}
  update: {op: update, model: actor, of: rows, micro_tokens: $micro, loss: "-token_mean(logprob)"}
run: {steps: 3}
"""
ITERATION = """graph: published-grpo
params: {prompts: 1, samples: 1, prompt_tokens: 1, response_tokens: 1}
models:
  actor: {checkpoint: config.json, train: {lr: 1.0e-6}}
  ref: {checkpoint: config.json}
nodes:
  prompts: {op: prompts, file: none.jsonl, batch: $prompts, template: "{q}", max_tokens: $prompt_tokens}
  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, max_tokens: $response_tokens}
  reward: {op: reward, of: rollout, answer: prompts.a, rule: {extract: '(.)', compare: string}}
  old_logprob: {op: logprob, model: actor, of: rollout}
  ref_logprob: {op: logprob, model: ref, of: rollout}
  advantage: {op: compute, expr: reward - group_mean(reward)}
  update:
    op: update
    model: actor
    of: rollout
    loss: |
      ratio = exp(logprob - old_logprob)
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2)) + 0.01 * (ref_logprob - logprob))
run: {steps: 3}
"""


def seconds(graphrun, folder, graph, model, hardware, gpus, **settings):
    """Predicted seconds of an iteration, and what the plan notes; None where nothing fits."""
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(MODELS[model], f)
    with open(os.path.join(folder, "graph.yaml"), "w") as f:
        f.write(graph)
    command = [graphrun, "plan", "graph.yaml", "--hardware", hardware, "--ranks", str(gpus), "--format", "json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode == 3:
        return None
    if done.returncode:
        sys.exit(done.stderr.decode())
    return json.loads(done.stdout)["seconds"]


def training(graphrun, folder):
    print("| source | model | GPUs | micro-batches | their recomputation | published s | predicted s | predicted / published | "
          "rate kept, published | predicted |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    first, ratios, kept = {}, [], []
    for source, model, hardware, gpus, length, sequences, micro, again, grads, rate in TRAINING:
        mine = seconds(graphrun, folder, UPDATE, model, hardware, gpus, sequences=sequences * micro * gpus,
                       tokens=length - 1, micro=sequences * length, grads=grads)
        theirs = sequences * micro * length / rate
        line = f"| {source} | {model} | {gpus} {hardware} | {micro} of {sequences} x {length} | {again} | {theirs:.3f} |"
        if mine is None:
            print(f"{line} does not fit | | | |", flush=True)
            continue
        ratios.append(mine / theirs)
        own = sequences * micro * length / mine
        base = first.setdefault((source, model, hardware, length, sequences, micro), (gpus, rate, own))
        line += f" {mine:.3f} | {mine / theirs:.2f} |"
        if base[0] == gpus:
            print(f"{line} | |", flush=True)
            continue
        kept.append((own / base[2]) / (rate / base[1]))
        print(f"{line} {rate / base[1]:.3f} of {base[0]} | {own / base[2]:.3f} |", flush=True)
    ratios.sort()
    print(f"\n{len(ratios)} rows: predicted / published {ratios[0]:.2f} to {ratios[-1]:.2f}, median {ratios[len(ratios) // 2]:.2f}; "
          f"of {len(kept)} with as much work a GPU on fewer, rate kept, predicted / published {min(kept):.3f} to {max(kept):.3f}\n")


def grpo(graphrun, folder):
    print("| model | GPUs | work | published s | predicted s | predicted / published |")
    print("|---|---|---|---|---|---|")
    for model, hardware, gpus, prompts, samples, prompt, response, theirs in GRPO:
        mine = seconds(graphrun, folder, ITERATION, model, hardware, gpus, prompts=prompts, samples=samples,
                       prompt_tokens=prompt, response_tokens=response)
        said = f"{mine:.1f} | {mine / theirs:.2f}" if mine else "does not fit |"
        print(f"| {model} | {gpus} {hardware} | {prompts} x {samples} of {prompt} + {response} | {theirs:.1f} | {said} |", flush=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        training(os.path.abspath(sys.argv[1]), folder)
        grpo(os.path.abspath(sys.argv[1]), folder)


if __name__ == "__main__":
    main()
