"""Does Hugging Face transformers load what graphrun writes?

usage: check_transformers_loads.py GRAPHRUN

For each model type, tied and untied: `graphrun init`, then `graphrun export` (bf16, and in shards) of the same
folder laid out as a run. transformers must find every tensor it wants and no other, and give finite logits;
its weights must be those the safetensors library reads. Needs torch, transformers and safetensors.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = dict(vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.05, bos_token_id=1,
             eos_token_id=2, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)

TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss",
         "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "gemma3_text", "gemma4_text", "phi3", "mixtral",
         "olmoe", "granitemoe", "seed_oss", "exaone4", "gemma", "deepseek_v2", "deepseek_v3", "glm4_moe_lite")
LATENT = dict(num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=12,
              moe_intermediate_size=24, n_routed_experts=6, num_experts_per_tok=2, first_k_dense_replace=1)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)
FEW = dict(num_local_experts=6, num_experts_per_tok=2)
SHARED = dict(shared_expert_intermediate_size=40, **EXPERTS)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
             full_attention_interval=2)
# Mixtral's and Granite's names as transformers holds them.
NAMES = {"block_sparse_moe.gate.": "mlp.gate.", "block_sparse_moe.experts.": "mlp.experts.", ".w1.": ".gate_proj.",
         ".w3.": ".up_proj.", ".w2.": ".down_proj.", "input_linear.weight": "experts.gate_up_proj",
         "output_linear.weight": "experts.down_proj", "router.layer.": "router."}


def config_of(model_type, tied):
    extra = {"llama": dict(rope_theta=5e5, rope_scaling=LLAMA3), "mistral": dict(sliding_window=None),
             "qwen2": {}, "qwen3": dict(head_dim=16),
             "qwen3_moe": dict(head_dim=16, mlp_only_layers=[1], **EXPERTS),
             "qwen2_moe": dict(shared_expert_intermediate_size=40, **EXPERTS),
             "gpt_oss": dict(head_dim=16, num_local_experts=6, num_experts_per_tok=2),
             "qwen3_5_text": dict(head_dim=16, **DELTA), "qwen3_5_moe_text": dict(head_dim=16, **DELTA, **SHARED),
             "qwen3_next": dict(head_dim=16, mlp_only_layers=[1], **DELTA, **SHARED),
             "gemma3_text": dict(head_dim=16, hidden_activation="gelu_pytorch_tanh"),
             "gemma4_text": dict(head_dim=16, hidden_activation="gelu_pytorch_tanh", hidden_size_per_layer_input=8, global_head_dim=32,
                                 vocab_size_per_layer_input=98, num_kv_shared_layers=1, use_double_wide_mlp=True,
                                 layer_types=["sliding_attention", "full_attention", "full_attention"],
                                 attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=6,
                                 top_k_experts=2, moe_intermediate_size=24),
             "phi3": {}, "mixtral": FEW, "olmoe": dict(num_experts=6, num_experts_per_tok=2), "granitemoe": FEW,
             "seed_oss": dict(head_dim=16), "exaone4": dict(sliding_window=None, layer_types=["full_attention"] * 3), "gemma": dict(head_dim=16, hidden_act="gelu_pytorch_tanh"),
             "glm4_moe": dict(head_dim=16, moe_intermediate_size=24, n_routed_experts=6, num_experts_per_tok=2),
             "deepseek_v2": dict(q_lora_rank=None, **LATENT),
             "deepseek_v3": dict(q_lora_rank=20, n_group=2, topk_group=1, **LATENT),
             "glm4_moe_lite": dict(q_lora_rank=20, **LATENT)}[model_type]
    return dict(model_type=model_type, tie_word_embeddings=tied, torch_dtype="float16", **{**SIZES, **extra})


def held(loaded, name):
    """What transformers has of a stored tensor: experts are parts of one."""
    for old, new in NAMES.items():
        name = name.replace(old, new)
    if ".experts." not in name or name in loaded:
        return loaded[name]
    stem, e, kind, _ = name.rsplit(".", 3)
    if kind == "down_proj":
        return loaded[f"{stem}.down_proj"][int(e)]
    return loaded[f"{stem}.gate_up_proj"][int(e)].chunk(2)[kind == "up_proj"]


def check_folder(path, dtype, shards):
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{path}: {kind} {info[kind]}"
    assert model.dtype == dtype, f"{path}: {model.dtype}"
    files = [f for f in os.listdir(path) if f.endswith(".safetensors")]
    assert (len(files) > 1) == shards, files
    stored = {name: t for f in files for name, t in load_file(os.path.join(path, f)).items()}
    loaded = model.state_dict()
    for name, t in stored.items():
        assert t.dtype == dtype and torch.equal(t, held(loaded, name).to(dtype)), name
    with torch.no_grad():
        logits = model.float()(torch.arange(2, 22).reshape(2, 10)).logits
    assert torch.isfinite(logits).all() and logits.std() > 0
    return stored


def check(graphrun, work, model_type, tied):
    run = os.path.join(work, f"{model_type}-{tied}")
    step = os.path.join(run, "checkpoints", "step-1")
    os.makedirs(step)
    config = os.path.join(run, "config.json")
    with open(config, "w") as f:
        json.dump(config_of(model_type, tied), f)
    made = os.path.join(step, "actor")
    subprocess.run([graphrun, "init", "--config", config, "--seed", "7", "-o", made], check=True)
    full = check_folder(made, torch.float32, False)
    embed = full["model.embed_tokens.weight"]
    assert abs(embed.std().item() - 0.05) < 0.005 and abs(embed.mean().item()) < 0.005
    assert ("lm_head.weight" in full) == (not tied)
    AutoConfig.from_pretrained(made)
    for shard, shards in (("50GB", False), ("40kB", True)):
        out = os.path.join(run, "out" + shard)
        subprocess.run([graphrun, "export", run, "--dtype", "bfloat16", "--shard", shard, "-o", out], check=True)
        half = check_folder(out, torch.bfloat16, shards)
        assert half.keys() == full.keys()
        for name, t in half.items():
            assert torch.equal(t, full[name].bfloat16()), name


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as work:
        for model_type, tied in itertools.product(TYPES, (False, True)):
            check(sys.argv[1], work, model_type, tied)
            print(f"{model_type} {'tied' if tied else 'untied'}: ok", flush=True)


if __name__ == "__main__":
    main()
