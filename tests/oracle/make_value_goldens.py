"""Write tests/golden/value/NAME/{config.json,model.safetensors}: tiny random models with a value head of one label, and
what Hugging Face transformers computes with them. Token classifiers (a critic) for every kind of model, and a sequence
classifier (a reward model), whose scores are those of whole sequences. Tensors beside the weights (exact in bf16):

  golden.ids [T], golden.offset [n + 1]   packed sequences, as floats
  golden.value [T], golden.d_value [T]    of every token; derivatives of a loss by them
  grad.NAME                               of sum(d_value value)
  golden.score [n]                        of sequences, by a sequence classifier alone
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

BASE = dict(vocab_size=24, hidden_size=16, num_hidden_layers=2, rms_norm_eps=1e-6, max_position_embeddings=64,
            initializer_range=0.3, intermediate_size=20, num_attention_heads=2, num_key_value_heads=1,
            tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, id2label={0: "LABEL_0"}, label2id={"LABEL_0": 0})
CASES = {
    "llama": dict(model_type="llama", head_dim=8, rope_theta=500.0),
    "mistral": dict(model_type="mistral", head_dim=8, rope_theta=1e4, sliding_window=None),
    "qwen2": dict(model_type="qwen2", rope_theta=1e4),
    "qwen3": dict(model_type="qwen3", head_dim=16, rope_theta=1e6),
    "reward": dict(model_type="qwen2", rope_theta=1e4),
}
LENGTHS = [13, 2, 7]


def build(name, config):
    kind = AutoModelForSequenceClassification if name == "reward" else AutoModelForTokenClassification
    # Newer transformers takes rope_theta inside rope_parameters and reads the old form.
    model = kind.from_config(AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key:
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif "bias" in key:
                p.copy_(0.2 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())
    return model


def values(model, ids):
    return model.score(model.model(ids[None]).last_hidden_state)[0, :, 0]


def golden(model, name, vocab):
    sequences = [torch.randint(3, vocab, (n,)) for n in LENGTHS]
    value = torch.cat([values(model, s) for s in sequences])
    d_value = torch.randn(len(value)) / len(value)
    (d_value * value).sum().backward()
    out = {"ids": torch.cat(sequences), "offset": torch.tensor([0] + LENGTHS).cumsum(0), "value": value,
           "d_value": d_value}
    heads = [model(s[None]).logits[0] for s in sequences]
    if name == "reward":
        out["score"] = torch.cat(heads)
    else:
        assert torch.equal(torch.cat(heads)[:, 0], value)
    return {"golden." + k: v.detach().float().contiguous() for k, v in out.items()}


def main(folder):
    for i, (name, case) in enumerate(CASES.items()):
        torch.manual_seed(i)
        config = {**BASE, **case}
        model = build(name, config)
        tensors = golden(model, name, config["vocab_size"])
        for k, p in model.named_parameters():
            tensors[k] = p.detach().bfloat16().contiguous()
            tensors["grad." + k] = p.grad.contiguous()
        config["architectures"] = [type(model).__name__]
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        save_file(tensors, os.path.join(path, "model.safetensors"))
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/value")
