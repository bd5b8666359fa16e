#!/usr/bin/env python3
"""Whole models of graphrun against transformers on the same device: log-probs, entropies, gradients, greedy generation.

    tests/gpu/transformers_compare.py --graphrun build/tools/graphrun [--device cuda] [--out DIR] [llama qwen2 qwen3 ...]

For each family a small random model is written by `graphrun init`, and everything is read from what `graphrun exec` leaves:

- log-probs and entropies: a graph of one record an iteration logs each position's value (metrics.jsonl);
- gradients: after one update with betas [0, 0.999], without clipping, the first moments are the gradient
  (optimizer.safetensors of the checkpoint);
- greedy generation: the responses of samples.jsonl, one character an id.

transformers runs the same weights twice: in fp32, which is the truth (of weights rounded to bf16 where the device's are),
and as its users run it on that device. What is asked of graphrun is an error against the truth no larger than twice
transformers' own, or than the floor, whichever is more; and a greedy token equal to the truth's wherever the truth's
first two logits are further apart than bf16 can blur them.

What greedy generation differs in is told apart: each of graphrun's tokens that is not the truth's has a line with the
truth's margin, what transformers' own type picks there, and whether graphrun, asked for the log-probs of its own
responses in one packed pass, finds them where the rollout had put them. A margin below the error of either side is
rounding; a rollout that the packed pass does not agree with is a rollout that is wrong. Every prompt is generated from
in a batch of all, and alone: both must be right. Prints a line a comparison; status 1 where one failed.
"""
import argparse
import json
import math
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "gpu"))
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import common

CHARACTERS = 380
IDS = 4 + CHARACTERS  # four special ids, then the characters
PROMPT, RESPONSE, RECORDS = 24, 40, 6
FLOOR = {"cuda": 1.0e-2, "cpu": 2e-5}  # of relative norms
SIZES = dict(hidden_size=256, intermediate_size=640, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
             vocab_size=IDS, max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=1e6, rope_scaling=None,
             hidden_act="silu", initializer_range=0.06, bos_token_id=None, eos_token_id=1, pad_token_id=2,
             torch_dtype="float32")
FAMILIES = {
    "llama": dict(architectures=["LlamaForCausalLM"], model_type="llama", head_dim=64, attention_bias=False, mlp_bias=False,
                  tie_word_embeddings=False),
    "qwen2": dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", num_attention_heads=4, tie_word_embeddings=True),
    "qwen3": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=128, num_attention_heads=4,
                  attention_bias=False, tie_word_embeddings=True),
    "qwen3_5": dict(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", head_dim=256, num_attention_heads=2,
                    num_key_value_heads=1, full_attention_interval=4, linear_num_key_heads=2, linear_num_value_heads=4,
                    linear_key_head_dim=128, linear_value_head_dim=128, partial_rotary_factor=0.25, tie_word_embeddings=False),
}

LOGPROBS = """graph: compare-logprobs
models: {actor: {checkpoint: MODEL}}
nodes:
  rows: {op: sequences, file: DATA, batch: 1, shuffle: false, prompt: "{prompt}", response: "{response}", eos: false, max_prompt_tokens: PROMPT, max_tokens: RESPONSE}
  lp: {op: logprob, model: actor, of: rows}
log:
LOG
run: {steps: RECORDS, seed: 1, checkpoint: {last: false}}
"""
GRADIENTS = """graph: compare-gradients
models:
  actor: {checkpoint: MODEL, train: {lr: 1.0e-6, betas: [0, 0.999], grad_clip: 0, weight_decay: 0}}
nodes:
  rows: {op: sequences, file: DATA, batch: RECORDS, shuffle: false, prompt: "{prompt}", response: "{response}", eos: false, max_prompt_tokens: PROMPT, max_tokens: RESPONSE}
  update: {op: update, model: actor, of: rows, loss: "-token_mean(logprob) - 0.1 * token_mean(entropy)"}
run: {steps: 1, seed: 1}
"""
GREEDY = """graph: compare-greedy
models: {actor: {checkpoint: MODEL}}
nodes:
  prompts: {op: prompts, file: DATA, batch: BATCH, shuffle: false, template: "{prompt}", max_tokens: PROMPT}
  rollout: {op: generate, model: actor, prompts: prompts, temperature: 0, max_tokens: RESPONSE, stop_ids: 4000000}
  reward: {op: reward, of: rollout, answer: prompts.response, rule: exact}
  lp: {op: logprob, model: actor, of: rollout}
log:
  length: batch_mean(rollout.length)
  score: batch_mean(reward)
GAPS
run: {steps: STEPS, seed: 1, samples: BATCH, checkpoint: {last: false}}
"""


def ids_of(text):
    return [4 + ord(c) - common.FIRST_CHARACTER if ord(c) >= common.FIRST_CHARACTER else "SEPU".index(c) for c in text]


class Compare:
    def __init__(self, a, family):
        self.a, self.family = a, family
        self.device = torch.device(a.device)
        self.failed = 0
        self.folder = os.path.join(a.out, family)
        os.makedirs(self.folder, exist_ok=True)
        self.model = os.path.join(self.folder, "model")
        self.make_model()
        self.make_data()
        own = torch.bfloat16 if a.device == "cuda" else torch.float32
        self.truth = self.load(own, torch.float32)
        self.peer = self.load(own, own)

    # ---- what both sides read ----

    def make_model(self):
        tokenizer = os.path.join(self.folder, "tokenizer")
        config = os.path.join(self.folder, "config.json")
        os.makedirs(tokenizer, exist_ok=True)
        common.write_json(config, dict(SIZES, **FAMILIES[self.family]))
        common.write_json(os.path.join(tokenizer, "tokenizer_config.json"),
                          dict(char_ords=list(range(common.FIRST_CHARACTER, common.FIRST_CHARACTER + CHARACTERS))))
        subprocess.run(["rm", "-rf", self.model], check=True)
        subprocess.run([self.a.graphrun, "init", "--config", config, "--tokenizer", tokenizer, "--seed", "7", "-o", self.model],
                       check=True, stdout=subprocess.DEVNULL)

    def make_data(self):
        generator = torch.Generator().manual_seed(3)
        self.data = os.path.join(self.folder, "data.jsonl")
        self.ids = torch.randint(4, IDS, (RECORDS, PROMPT + RESPONSE), generator=generator)
        with open(self.data, "w") as f:
            for row in self.ids.tolist():
                text = "".join(chr(common.FIRST_CHARACTER + i - 4) for i in row)
                f.write(json.dumps(dict(prompt=text[:PROMPT], response=text[PROMPT:])) + "\n")

    def load(self, rounded, dtype):
        """The model with weights rounded to one type, held and computed in another."""
        config = AutoConfig.from_pretrained(self.model)
        model = AutoModelForCausalLM.from_pretrained(self.model, config=config, dtype=torch.float32, attn_implementation="sdpa")
        return model.to(rounded).to(dtype).to(self.device).eval()

    def execute(self, name, text, **more):
        gaps = "".join(f"  gap{i}: token_sum(abs(lp - rollout.logprob), rollout.position == {i})\n" for i in range(RESPONSE))
        log = "".join(f"  {what}{i}: token_sum({field}, rows.position == {i})\n" for i in range(RESPONSE)
                      for what, field in (("p", "lp"), ("e", "lp.entropy")))
        for key, value in dict(MODEL=self.model, DATA=self.data, RECORDS=RECORDS, PROMPT=PROMPT, RESPONSE=RESPONSE,
                               LOG=log.rstrip("\n"), GAPS=gaps.rstrip("\n"), **more).items():
            text = text.replace(key, str(value))
        path = os.path.join(self.folder, name + ".yaml")
        with open(path, "w") as f:
            f.write(text)
        return common.execute(self.a.graphrun, path, os.path.join(self.folder, name), self.a.device, {})

    # ---- comparing ----

    def say(self, what, ok, text):
        self.failed += not ok
        print(f"{self.family:6} {what:44} {text}  {'OK' if ok else 'FAIL'}", flush=True)

    def errors(self, what, ours, peer, truth):
        ours, peer, truth = (x.double().cpu().flatten() for x in (ours, peer, truth))
        norm = truth.norm()
        e, p = ((x - truth).norm() / norm for x in (ours, peer))
        bound = max(FLOOR[self.a.device], 2 * p.item())
        self.say(what, e.item() <= bound,  # NaN fails
                 f"rel {e:.2e}  transformers {p:.2e}  max abs {(ours - truth).abs().max():.2e}")

    def statistics(self, model):
        """Log-prob and entropy of each response token."""
        ids = self.ids.to(self.device)
        logits = model(ids).logits[:, PROMPT - 1:-1].float()
        logs = torch.log_softmax(logits, -1)
        return logs.gather(-1, ids[:, PROMPT:, None])[..., 0], -(logs.exp() * logs).sum(-1)

    def logprobs(self):
        run = self.execute("logprobs", LOGPROBS)
        with torch.no_grad():
            truth, peer = self.statistics(self.truth), self.statistics(self.peer)
        for k, name in ((0, "p"), (1, "e")):
            ours = torch.tensor([[m[f"{name}{i}"] for i in range(RESPONSE)] for m in run.metrics], dtype=torch.float64)
            self.errors({"p": "log-probs", "e": "entropies"}[name], ours, peer[k], truth[k])

    def gradient_of(self, model):
        model.zero_grad(set_to_none=True)
        logprob, entropy = self.statistics(model)
        (-logprob.mean() - 0.1 * entropy.mean()).backward()
        return {n: p.grad for n, p in model.named_parameters()}

    def gradients(self):
        run = self.execute("gradients", GRADIENTS)
        found = load_file(os.path.join(run.folder, "checkpoints", "step-1", "actor", "optimizer.safetensors"))
        truth, peer = self.gradient_of(self.truth), self.gradient_of(self.peer)
        missing = [n for n in truth if "m." + n not in found]
        self.say("gradients: every tensor is there", not missing, f"{len(truth)} tensors {' '.join(missing)}")
        kinds = {}
        for n in truth:
            kinds.setdefault(n.split(".layers.")[-1].split(".", 1)[-1] if ".layers." in n else n, []).append(n)
        for kind, names in kinds.items():
            parts = [torch.cat([g.double().cpu().flatten() for g in grads]) for grads in (
                [found["m." + n] for n in names], [peer[n] for n in names], [truth[n] for n in names])]
            self.errors("gradient of " + kind, *parts)

    def margins(self, rows):
        """The truth's and transformers' own logits behind each response token, of these prefixes, the error of the second,
        and what rounding may do to a difference of two: half as much again as the worst error twice, and no less than a
        step of the type."""
        with torch.no_grad():  # of graphrun's own prefix: one near tie must not make all that follows another text
            truth, peer = (m(rows.to(self.device)).logits[:, PROMPT - 1:-1].float().cpu() for m in (self.truth, self.peer))
        step = 2.0 ** (math.floor(math.log2(truth.abs().max().item())) - 8) if self.a.device == "cuda" else 1e-5
        return truth, peer, 3 * max((peer - truth).abs().max().item(), step)

    def greedy_of(self, what, batch):
        """Greedy responses in batches of so many prompts."""
        run = self.execute("greedy-" + what, GREEDY, BATCH=batch, STEPS=RECORDS // batch)
        with open(os.path.join(run.folder, "samples.jsonl")) as f:
            samples = [json.loads(line) for line in f]
        rows = torch.tensor([ids_of(s["prompt"]) + ids_of(s["response"]) for s in samples])
        self.say(f"greedy, {what}: responses of full length", tuple(rows.shape) == (RECORDS, PROMPT + RESPONSE), f"{tuple(rows.shape)}")
        truth, peer, blur = self.margins(rows)
        top = truth.topk(2, -1)
        margin, ours = top.values[..., 0] - top.values[..., 1], rows[:, PROMPT:]
        same, clear = ours == top.indices[..., 0], margin > blur
        wrong = (~same & clear).sum().item()
        self.say(f"greedy, {what}: tokens", wrong == 0 and clear.sum().item() > margin.numel() // 4,
                 f"{same.sum().item()} of {margin.numel()} equal, {clear.sum().item()} clear of rounding ({blur:.3g}), of them "
                 f"wrong: {wrong}; transformers' own type differs in {(peer.argmax(-1) != top.indices[..., 0]).sum().item()}, "
                 f"clear ones: {((peer.argmax(-1) != top.indices[..., 0]) & clear).sum().item()}")
        # of the tokens at one position, mean over a batch: rollout against the packed pass
        gaps = torch.tensor([[m[f"gap{i}"] / batch for i in range(RESPONSE)] for m in run.metrics])
        for i, j in (~same).nonzero().tolist():
            rank = (truth[i, j] > truth[i, j, ours[i, j]]).sum().item()
            print(f"{self.family:6}   response {i}, token {j}: margin {margin[i, j]:.3f}, ours is number {rank + 1} of the truth, "
                  f"{(top.values[i, j, 0] - truth[i, j, ours[i, j]]).item():.3f} below it; transformers' own type picks "
                  f"{'ours' if peer[i, j].argmax() == ours[i, j] else 'the truth' if peer[i, j].argmax() == top.indices[i, j, 0] else 'another'}"
                  f"; rollout and packed pass differ by {gaps[i // batch, j]:.4f} there", flush=True)
        logs = torch.log_softmax(truth, -1).gather(-1, ours[..., None])[..., 0]
        peers = torch.log_softmax(peer, -1).gather(-1, ours[..., None])[..., 0]
        limit = max(FLOOR[self.a.device], 4 * (peers - logs).abs().max().item())
        self.say(f"greedy, {what}: log-probs of rollout and packed pass", gaps.max().item() <= limit,  # NaN fails
                 f"mean {gaps.mean():.2e}, worst {gaps.max():.2e} at token {gaps.max(0).values.argmax().item()} (limit {limit:.2e})")
        return rows

    def greedy(self):
        together, alone = self.greedy_of("together", RECORDS), self.greedy_of("alone", 1)
        print(f"{self.family:6}   {(together != alone).any(-1).sum().item()} of {RECORDS} responses depend on the batch", flush=True)

    def all(self):
        for part in (self.logprobs, self.gradients, self.greedy):
            try:
                part()
            except Exception as e:  # the other parts are other matters
                self.say(part.__name__, False, f"{type(e).__name__}: {e}")
        return self.failed


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("family", nargs="*", help="of " + ", ".join(FAMILIES))
    p.add_argument("--graphrun", default="build/tools/graphrun")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--out", default="compare-gpu")
    a = p.parse_args()
    a.out = os.path.abspath(a.out)
    if a.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: skipped")
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = sum(Compare(a, family).all() for family in a.family or FAMILIES)
    print("all is well" if not failed else f"{failed} comparisons failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
