"""Write tests/golden/routing/model.safetensors: what Hugging Face transformers computes with the model of
tests/golden/model/qwen3_moe where its routers are told which experts to take, and its load-balancing loss:

  routes [layers of experts T, k]          the experts that are given, as floats
  logprob [T]                             of softmax(logits / 0.7) and the model's golden targets
  given.grad.NAME                         of sum(golden.d_logprob logprob)
  balance [1]                             load_balancing_loss_func, of the experts that the routers choose themselves
  balance.grad.NAME                       of it

usage: routing_goldens.py [FOLDER OF GOLDENS]
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter, load_balancing_loss_func

from make_model_goldens import TEMPERATURE, split_experts


def fuse_experts(tensors):
    """The inverse of split_experts."""
    out, found = {}, {}
    for name, t in tensors.items():
        if ".experts." not in name:
            out[name] = t
            continue
        stem, rest = name.split(".experts.")
        e, part = rest.split(".")[:2]
        found.setdefault(stem, {}).setdefault(int(e), {})[part] = t
    for stem, experts in found.items():
        experts = [experts[e] for e in sorted(experts)]
        out[stem + ".experts.gate_up_proj"] = torch.stack([torch.cat([x["gate_proj"], x["up_proj"]]) for x in experts])
        out[stem + ".experts.down_proj"] = torch.stack([x["down_proj"] for x in experts])
    return out


def grads(model, prefix):
    """Those of all weights, zeros where there is none; then none are left."""
    out = {}
    for name, p in model.named_parameters():
        out["grad." + name] = torch.zeros_like(p) if p.grad is None else p.grad.clone()
        p.grad = None
    return {prefix + k: v.float().contiguous() for k, v in split_experts(out).items()}


def main(folder):
    path = os.path.join(folder, "model", "qwen3_moe")
    stored = load_file(os.path.join(path, "model.safetensors"))
    golden = {k[len("golden."):]: v for k, v in stored.items() if k.startswith("golden.")}
    weights = {k: v.float() for k, v in stored.items() if not k.startswith(("golden.", "grad."))}
    config = AutoConfig.from_pretrained(path)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager",
                                             experts_implementation="eager").eval()
    model.load_state_dict(fuse_experts(weights))
    routers = [m for m in model.modules() if isinstance(m, Qwen3MoeTopKRouter)]
    ids, offset, target = golden["ids"].long(), golden["offset"].long(), golden["target"].long()
    sequences = [ids[a:b] for a, b in zip(offset, offset[1:])]

    torch.manual_seed(7)
    k, n = config.num_experts_per_tok, len(ids)
    routes = torch.stack([torch.stack([torch.randperm(config.num_experts)[:k] for _ in range(n)]) for _ in routers])

    own_topk, at = torch.topk, {}

    def given_topk(x, *args, **kwargs):  # only routers call it; in the order of layers
        experts = routes[at["layer"], at["first"]:at["first"] + len(x)]
        at["layer"] += 1
        return x.gather(1, experts), experts

    logits = []
    torch.topk = given_topk
    for first, s in zip(offset, sequences):
        at.update(layer=0, first=int(first))
        logits.append(model(s[None]).logits[0])
    torch.topk = own_topk
    logprob = torch.log_softmax(torch.cat(logits) / TEMPERATURE, dim=-1).gather(1, target[:, None])[:, 0]
    (golden["d_logprob"] * logprob).sum().backward()
    out = {"routes": routes.flatten(0, 1).float(), "logprob": logprob.detach()} | grads(model, "given.")

    chosen = [[] for _ in routers]
    hooks = [r.register_forward_hook(lambda m, i, o, to=to: to.append(o[0])) for r, to in zip(routers, chosen)]
    for s in sequences:
        model(s[None])
    loss = load_balancing_loss_func(tuple(torch.cat(c) for c in chosen), config.num_experts, k)
    loss.backward()
    out |= {"balance": loss.detach()[None]} | grads(model, "balance.")
    for h in hooks:
        h.remove()
    save_file({key: v.contiguous() for key, v in out.items()}, os.path.join(folder, "routing", "model.safetensors"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden")
