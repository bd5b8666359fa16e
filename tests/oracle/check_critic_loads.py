"""Do graphrun and Hugging Face transformers say the same of critics and reward models, and load each other's?

usage: check_critic_loads.py GRAPHRUN

For each model type: a critic is trained from a language model's checkpoint with a fresh head, and written; a critic as
TRL stores it (v_head beside a language model) and a random reward model are asked too. transformers must find every
tensor of what graphrun wrote and no other, and its values and scores must have the means that graphrun logs. Needs
torch, transformers and safetensors.
"""

import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

CHARACTERS = "0123456789+="
SIZES = dict(vocab_size=16, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2, bos_token_id=None,
             eos_token_id=1, pad_token_id=2, tie_word_embeddings=True)
EXTRA = {"llama": dict(rope_theta=5e5), "mistral": dict(sliding_window=None), "qwen2": {}, "qwen3": dict(head_dim=16)}
CLASS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
RECORDS = [("1+2=", "3"), ("17+25=", "42"), ("9=", "9999"), ("30+11=", "4"), ("5+5=", "10"), ("0=", "0123")]
GRAPH = """graph: critic
models:
  critic: {{checkpoint: {critic}, head: value, train: {{lr: 1.0e-2}}}}
  judge: {{checkpoint: {judge}}}
nodes:
  rows: {{op: sequences, file: data.jsonl, batch: 6, shuffle: false, prompt: "{{q}}", response: "{{a}}", max_prompt_tokens: 16, max_tokens: 8, model: critic}}
  values: {{op: value, model: critic, of: rows}}
  scores: {{op: score, model: judge, of: rows}}
  update: {{op: update, model: critic, of: rows, loss: token_mean((value - rows.position)^2)}}
log: {{value: token_mean(values), square: token_mean(values^2), score: batch_mean(scores)}}
run: {{steps: {steps}, seed: 3}}
"""


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def ids_of(text):
    return [4 + CHARACTERS.index(c) for c in text]


def sequences():
    """Prompt with response and the stop id, and how many tokens the response has."""
    return [(torch.tensor([ids_of(q + a) + [1]]), len(a) + 1) for q, a in RECORDS]


def run(graphrun, name, critic, steps):
    write(name + ".yaml", GRAPH.format(critic=critic, judge="judge", steps=steps))
    subprocess.run([graphrun, "exec", name + ".yaml", "--out", name], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(name, "metrics.jsonl")) as f:
        return json.loads(f.readline())


def means(values_of):
    values = torch.cat([values_of(ids)[-n - 1:-1] for ids, n in sequences()])
    return values.mean().item(), (values ** 2).mean().item()


def near(what, got, want):
    assert abs(got - want) <= 2e-5 * (1 + abs(want)), f"{what}: graphrun {got}, transformers {want}"


def loaded(kind, path):
    model, info = kind.from_pretrained(path, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], f"{path}: {key} {info[key]}"
    return model.eval()


def initialised(graphrun, name, config):
    write(name + ".json", json.dumps(config))
    subprocess.run([graphrun, "init", "--config", name + ".json", "--tokenizer", ".", "--seed", "7", "-o", name],
                   check=True, stdout=subprocess.DEVNULL)


def trl(path, base):
    """As TRL's AutoModelForCausalLMWithValueHead.save_pretrained lays it out."""
    os.makedirs(path)
    tensors = load_file(os.path.join(base, "model.safetensors"))
    tensors["v_head.summary.weight"] = torch.randn(1, SIZES["hidden_size"]) * 0.1
    tensors["v_head.summary.bias"] = torch.randn(1)
    save_file(tensors, os.path.join(path, "model.safetensors"))
    for file in ("config.json", "tokenizer_config.json"):
        with open(os.path.join(base, file)) as f:
            write(os.path.join(path, file), f.read())
    return tensors["v_head.summary.weight"][0], tensors["v_head.summary.bias"]


@torch.no_grad()
def check(graphrun, model_type):
    torch.manual_seed(0)
    write("tokenizer_config.json", json.dumps({"char_ords": [ord(c) for c in CHARACTERS]}))
    write("data.jsonl", "".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in RECORDS))
    config = dict(model_type=model_type, **SIZES, **EXTRA[model_type])
    initialised(graphrun, "base", {**config, "architectures": [CLASS[model_type] + "ForCausalLM"]})
    initialised(graphrun, "judge", {**config, "architectures": [CLASS[model_type] + "ForSequenceClassification"],
                                    "id2label": {"0": "reward"}, "label2id": {"reward": 0}})

    fresh = run(graphrun, "fresh", "base", 3)
    written = "fresh/checkpoints/step-3/critic"
    again = run(graphrun, "again", written, 1)
    assert fresh["value"] != again["value"], "the critic has learnt nothing"
    critic = loaded(AutoModelForTokenClassification, written)
    mean, square = means(lambda ids: critic(ids).logits[0, :, 0])
    near("value", again["value"], mean)
    near("square", again["square"], square)

    judge = loaded(AutoModelForSequenceClassification, "judge")
    near("score", again["score"], torch.stack([judge(ids).logits[0, 0] for ids, _ in sequences()]).mean().item())

    weight, bias = trl("trl", "base")
    base = AutoModelForCausalLM.from_pretrained("base").eval()
    mean, square = means(lambda ids: base(ids, output_hidden_states=True).hidden_states[-1][0] @ weight + bias)
    stored = run(graphrun, "stored", "trl", 1)
    near("value of v_head", stored["value"], mean)
    near("square of v_head", stored["square"], square)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    graphrun = os.path.abspath(sys.argv[1])
    for model_type in CLASS:
        with tempfile.TemporaryDirectory() as work:
            os.chdir(work)
            check(graphrun, model_type)
            print(f"{model_type}: ok", flush=True)
            os.chdir("/")


if __name__ == "__main__":
    main()
