"""Write tests/golden/lora/NAME/: adapters as Hugging Face peft saves them, and what it computes with them in float64.

  adapter_config.json, adapter_model.safetensors   by save_pretrained, beside a model of tests/golden/model or /value
  golden.safetensors: golden.* as make_model_goldens.py has them, but golden.values [T] of a value head, whose loss is
  sum(d_logprob values); grad.NAME of each tensor that is trained; stepped.NAME after one step of AdamW with it
"""
import json
import os
import sys

import torch
from peft import LoraConfig, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Seeds are places. Targets of a part of q, k and v, and of gate and up alone; norms behind; factors on weights of norms; a value head.
CASES = {
    "qwen3": dict(of="model/qwen3", r=4, lora_alpha=6, target_modules=ALL),
    "qwen2": dict(of="model/qwen2", r=3, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"]),
    "olmo2": dict(of="model/olmo2", r=2, lora_alpha=2, target_modules=["k_proj", "o_proj", "down_proj"]),
    "gemma3": dict(of="model/gemma3_text", r=2, lora_alpha=4, target_modules=ALL),
    "value": dict(of="value/llama", r=4, lora_alpha=8, target_modules=ALL, modules_to_save=["score"]),
    "qwen3_moe": dict(of="model/qwen3_moe", r=4, lora_alpha=8, target_modules=ALL[:4]),  # beside frozen experts
    "gemma4": dict(of="model/gemma4_text", r=3, lora_alpha=4, target_modules=ALL),  # a layer without a projection of values
    "gemma4_small": dict(of="model/gemma4_small", r=3, lora_alpha=4, target_modules=ALL),  # layers without those of keys, either
}
LENGTHS = [17, 5, 9]
TEMPERATURE = 0.7
ADAMW = dict(lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)


def build(folder, case):
    base = os.path.join(folder, case["of"])
    value = case["of"].startswith("value")
    kind = AutoModelForTokenClassification if value else AutoModelForCausalLM
    model = kind.from_pretrained(base, dtype=torch.float64, attn_implementation="eager", **(dict(num_labels=1) if value else {}),
                                **(dict(experts_implementation="eager") if "_moe" in case["of"] else {}))
    config = LoraConfig(task_type=TaskType.TOKEN_CLS if value else TaskType.CAUSAL_LM, lora_dropout=0.0,
                        **{k: v for k, v in case.items() if k != "of"})
    model = get_peft_model(model, config, autocast_adapter_dtype=False).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_" in name:
                p.copy_((0.2 * torch.randn_like(p)).bfloat16())
    return model


def golden(model, value):
    vocab = model.config.vocab_size
    sequences = [torch.randint(vocab, (n,)) for n in LENGTHS]
    n = sum(LENGTHS)
    target, d_logprob, d_entropy = torch.randint(vocab, (n,)), torch.randn(n) / n, torch.randn(n) / n
    logits = torch.cat([model(input_ids=s[None]).logits[0] for s in sequences])
    out = {"ids": torch.cat(sequences), "offset": torch.tensor([0] + LENGTHS).cumsum(0), "target": target,
           "d_logprob": d_logprob, "d_entropy": d_entropy}
    if value:
        out["values"] = logits[:, 0]
        (d_logprob.double() * logits[:, 0]).sum().backward()
    else:
        logp = torch.log_softmax(logits / TEMPERATURE, dim=-1)
        out["entropy"] = -(logp.exp() * logp).sum(-1)
        out["logprob"] = logp.gather(1, target[:, None])[:, 0]
        ((d_logprob.double() * out["logprob"]).sum() + (d_entropy.double() * out["entropy"]).sum()).backward()
    return {"golden." + k: v.detach().float().contiguous() for k, v in out.items()}


def main(folder, names):
    for i, (name, case) in enumerate(CASES.items()):
        if names and name not in names:
            continue
        torch.manual_seed(200 + i)
        model = build(folder, case)
        path = os.path.join(folder, "lora", name)
        model.save_pretrained(path)
        os.remove(os.path.join(path, "README.md"))
        saved = load_file(os.path.join(path, "adapter_model.safetensors"))
        save_file({k: v.bfloat16().contiguous() for k, v in saved.items()}, os.path.join(path, "adapter_model.safetensors"))
        config = json.load(open(os.path.join(path, "adapter_config.json")))
        config["base_model_name_or_path"] = case["of"]
        config["target_modules"] = sorted(config["target_modules"])
        json.dump(config, open(os.path.join(path, "adapter_config.json"), "w"), indent=1, sort_keys=True)
        tensors = golden(model, case["of"].startswith("value"))
        trained = {k.replace(".default", "").replace(".modules_to_save", ""): p for k, p in model.named_parameters()
                   if p.requires_grad}
        assert set(trained) == set(saved), set(trained) ^ set(saved)
        tensors |= {"grad." + k: p.grad.float().contiguous() for k, p in trained.items()}
        torch.optim.AdamW(trained.values(), **ADAMW).step()
        tensors |= {"stepped." + k: p.detach().float().contiguous() for k, p in trained.items()}
        save_file(tensors, os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden", sys.argv[2:])
