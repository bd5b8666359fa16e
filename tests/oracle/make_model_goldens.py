"""Write tests/golden/model/NAME/{config.json,model.safetensors}: tiny random models and what Hugging Face
transformers computes with them: of all cases, or of those that are named. Tensors beside the weights (which are exact
in bf16):

  golden.ids [T], golden.offset [n + 1]   packed sequences, as floats
  golden.logits [T, V]                    of every token
  golden.target, golden.d_logprob, golden.d_entropy [T]
  golden.logprob, golden.entropy [T]      of softmax(logits / 0.7) and the targets
  grad.NAME                               of sum(d_logprob logprob + d_entropy entropy)
  golden.greedy [n, steps]                continuations of the first 5 tokens of each sequence
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

BASE = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, rms_norm_eps=1e-6, max_position_embeddings=256,
            initializer_range=0.2, bos_token_id=1, eos_token_id=2)
CASES = {
    "qwen3": dict(model_type="qwen3", intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
                  head_dim=16, rope_theta=1e6, tie_word_embeddings=True),
    "qwen2": dict(model_type="qwen2", intermediate_size=40, num_attention_heads=4, num_key_value_heads=1,
                  rope_theta=1e4, tie_word_embeddings=False),
    "llama": dict(model_type="llama", intermediate_size=40, num_attention_heads=2, num_key_value_heads=2,
                  head_dim=16, tie_word_embeddings=False, rope_theta=500.0,
                  rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                    original_max_position_embeddings=64)),
}
# Families beyond these, smaller: what is new in each is in the comment. Lengths exceed windows.
SMALL = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
             pad_token_id=None)
TURNS = dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=12,
             hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)
CASES |= {
    "mistral": dict(model_type="mistral", sliding_window=7, tie_word_embeddings=False, **SMALL),  # a window
    "yarn": dict(model_type="llama", tie_word_embeddings=True, rope_theta=1e4, **SMALL,
                 rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "olmo2": dict(model_type="olmo2", tie_word_embeddings=False, rope_theta=5e5, **SMALL),  # norms behind, of all heads
    "smollm3": dict(model_type="smollm3", no_rope_layers=[1, 0], tie_word_embeddings=True, rope_theta=5e3, **SMALL),
    "granite": dict(model_type="granite", embedding_multiplier=3.0, residual_multiplier=0.3, attention_multiplier=0.4,
                    logits_scaling=2.5, tie_word_embeddings=True, rope_theta=1e4, **SMALL),
    "gemma2": dict(model_type="gemma2", attn_logit_softcapping=2.0, final_logit_softcapping=3.0, rope_theta=1e4, **SMALL,
                   **TURNS),
    "gemma3_text": dict(model_type="gemma3_text", rope_theta=1e6, rope_local_base_freq=1e3,
                        rope_scaling=dict(rope_type="linear", factor=8.0), **SMALL, **TURNS),
    "olmo3": dict(model_type="olmo3", tie_word_embeddings=False, rope_theta=5e5, sliding_window=6,
                  layer_types=["sliding_attention", "full_attention"], **SMALL,
                  rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "qwen3_window": dict(model_type="qwen3", tie_word_embeddings=True, rope_theta=1e4, use_sliding_window=True,
                         sliding_window=6, max_window_layers=1, **SMALL),
}
# Experts; layers without them beside. The seeds of the others are their places.
SEEDS = dict(qwen3_moe=100, qwen2_moe=101, glm4_moe=102)
CASES |= {
    "qwen3_moe": dict(model_type="qwen3_moe", num_hidden_layers=3, intermediate_size=24, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=8, rope_theta=1e6, tie_word_embeddings=False, num_experts=6,
                      num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True, mlp_only_layers=[1]),
    "qwen2_moe": dict(model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                      shared_expert_intermediate_size=12, tie_word_embeddings=False, rope_theta=1e4, **SMALL),
    "glm4_moe": dict(model_type="glm4_moe", n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=8, n_group=4,
                     topk_group=2, routed_scaling_factor=1.7, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True,
                     partial_rotary_factor=0.5, tie_word_embeddings=False, rope_theta=1e4, **SMALL),
}
CASES |= {
    "qwen3_5_text": dict(model_type="qwen3_5_text", layer_types=["linear_attention", "full_attention"],  # a delta rule
                         linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
                         rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
                         tie_word_embeddings=False, **SMALL),
}
# Hybrids with experts: of qwen3_next key heads of two value heads each, and a dense layer; of qwen3_5_moe the experts as
# one tensor, as it is published, and the model a part of one of text and images.
HYBRID = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6, num_experts=4,
              num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=12, tie_word_embeddings=False,
              rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))
SEEDS |= dict(qwen3_next=103, qwen3_5_moe=104, gemma3=105)
CASES |= {
    "qwen3_next": dict(model_type="qwen3_next", layer_types=["linear_attention", "full_attention", "linear_attention"],
                       mlp_only_layers=[2], **HYBRID, **SMALL | dict(num_hidden_layers=3)),
    "qwen3_5_moe": dict(model_type="qwen3_5_moe_text", layer_types=["linear_attention", "full_attention"], **HYBRID, **SMALL),
    "gemma3": dict(model_type="gemma3_text", rope_theta=1e6, rope_local_base_freq=1e3, **SMALL, **TURNS),
}
# Small steps from others: tensors that are joined, experts under other names or chosen first, NoPE beside a window.
MOE = dict(num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False)
SEEDS |= dict(phi3=108, mixtral=109, olmoe=110, granitemoe=111, seed_oss=112, exaone4=113, gemma=114, mistral3=115)
CASES |= {
    "phi3": dict(model_type="phi3", sliding_window=6, original_max_position_embeddings=256, tie_word_embeddings=False,
                 rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
                 **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "mixtral": dict(model_type="mixtral", rope_theta=1e4, sliding_window=9, **MOE, **SMALL),
    "olmoe": dict(model_type="olmoe", num_experts=4, num_experts_per_tok=2, tie_word_embeddings=False, rope_theta=1e4,
                  **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "granitemoe": dict(model_type="granitemoe", embedding_multiplier=3.0, residual_multiplier=0.3, attention_multiplier=0.4,
                       logits_scaling=2.5, rope_theta=1e4, **MOE, **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "seed_oss": dict(model_type="seed_oss", attention_out_bias=True, attention_dropout=0.0, residual_dropout=0.0,
                     tie_word_embeddings=False, rope_theta=1e4, **SMALL),
    "exaone4": dict(model_type="exaone4", sliding_window=6, layer_types=["sliding_attention", "full_attention"],
                    tie_word_embeddings=False, rope_theta=1e4, **SMALL),
    "gemma": dict(model_type="gemma", hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, rope_theta=1e4, **SMALL),
    "mistral3": dict(model_type="mistral", sliding_window=None, tie_word_embeddings=False, rope_theta=1e4, **SMALL),
}
# Positions of longrope: of sequences up to the border, and beyond it (transformers decides by each call's longest).
LONGROPE = dict(model_type="phi3", tie_word_embeddings=True, max_position_embeddings=256, rope_theta=1e4,
                partial_rotary_factor=0.75, **{k: v for k, v in SMALL.items() if k != "head_dim"},
                rope_scaling=dict(type="longrope", short_factor=[1.05, 1.2, 2.5], long_factor=[1.1, 4.0, 33.0]))
SEEDS |= dict(phi3_short=116, phi3_long=117)
CASES |= {
    "phi3_short": dict(original_max_position_embeddings=64, **LONGROPE),
    "phi3_long": dict(original_max_position_embeddings=4, **LONGROPE),
}
# Windows in turn; and YaRN with queries that are scaled beyond the border, which no sequence here reaches.
SEEDS |= dict(ministral=118, ministral3=119)
CASES |= {
    "ministral": dict(model_type="ministral", sliding_window=6, layer_types=["sliding_attention", "full_attention"],
                      tie_word_embeddings=False, rope_theta=1e4, **SMALL),
    "ministral3": dict(model_type="ministral3", tie_word_embeddings=False, **SMALL,
                       rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64,
                                            beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                                            llama_4_scaling_beta=0.1)),
}
# Heads of another size and number in layers without a window, whose keys are values; norms of values; a number for each
# layer. The other has values of its own, says its heads as transformers 5 writes them, and is a part of one of text and images.
GEMMA4 = dict(model_type="gemma4_text", sliding_window=6, layer_types=["sliding_attention", "full_attention"],
              hidden_activation="gelu_pytorch_tanh", hidden_size_per_layer_input=0, final_logit_softcapping=3.0,
              tie_word_embeddings=True, **SMALL | dict(num_attention_heads=4, num_key_value_heads=2))
SEEDS |= dict(gemma4_text=120, gemma4=121, gemma4_moe=122)
CASES |= {
    "gemma4_text": dict(attention_k_eq_v=True, global_head_dim=16, num_global_key_value_heads=1, **GEMMA4),
    "gemma4_moe": dict(attention_k_eq_v=True, global_head_dim=16, num_global_key_value_heads=1, enable_moe_block=True,  # beside
                       num_experts=4, top_k_experts=2, moe_intermediate_size=8, **GEMMA4),
    "gemma4": dict(per_layer_config={"1": dict(head_dim=12)}, use_bidirectional_attention="vision", **GEMMA4,
                   rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=1e3),
                                        full_attention=dict(rope_type="proportional", rope_theta=1e4, factor=2.0,
                                                            partial_rotary_factor=0.6))),
}
# Embeddings of each layer, and layers with the keys and values of the last of their type before: with an MLP of twice the
# width there, two layers that take from one, and a table of more rows than there are tokens; and where keys are values, with
# projections of them in the checkpoint that nobody reads, a part of one of text and images.
PER_LAYER = GEMMA4 | dict(hidden_size_per_layer_input=4, vocab_size_per_layer_input=34)
SEEDS |= dict(gemma4_small=126, gemma4_shared=129)  # where fp32 is near fp64 in transformers itself
CASES |= {
    "gemma4_small": dict(num_kv_shared_layers=3, use_double_wide_mlp=True, global_head_dim=16,
                         **PER_LAYER | dict(num_hidden_layers=6, layer_types=["sliding_attention"] * 2 + ["full_attention"]
                                            + ["sliding_attention"] * 2 + ["full_attention"])),
    "gemma4_shared": dict(num_kv_shared_layers=2, attention_k_eq_v=True, global_head_dim=12, num_global_key_value_heads=1,
                          **PER_LAYER | dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)),
}
REVERTED = ["mixtral", "olmoe", "granitemoe"]  # named as transformers saves them
# Of text and images: the config around the text's, where the text is in the tensors, and what is beside it.
OUTER = {
    "mistral3": ("mistral3", "Mistral3ForConditionalGeneration", "language_model.model.", "language_model.lm_head.",
                 ["vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight"]),
    "qwen3_5_moe": ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "model.language_model.", "lm_head.",
                    ["model.visual.patch_embed.proj.weight", "mtp.fc.weight"]),
    "gemma3": ("gemma3", "Gemma3ForConditionalGeneration", "language_model.model.", "language_model.lm_head.",
               ["vision_tower.vision_model.post_layernorm.weight", "multi_modal_projector.mm_soft_emb_norm.weight"]),
    "gemma4": ("gemma4", "Gemma4ForConditionalGeneration", "model.language_model.", "lm_head.",
               ["model.vision_tower.patch_embedder.input_proj.weight", "model.embed_audio.embedding_projection.weight"]),
    "gemma4_shared": ("gemma4", "Gemma4ForConditionalGeneration", "model.language_model.", "lm_head.",
                      ["model.language_model.layers.3.self_attn.k_proj.weight",
                       "model.language_model.layers.2.self_attn.v_proj.weight"]),
}
# Sinks, biases everywhere, a clamp that clamps; and its experts in MXFP4, as published.
OSS = dict(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, swiglu_limit=0.3, sliding_window=6,
           layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=False, rope_theta=1e4,
           rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, truncate=False))
SEEDS |= dict(gpt_oss=106, gpt_oss_mxfp4=107)
CASES |= {
    "gpt_oss": dict(**OSS, **SMALL),
    "gpt_oss_mxfp4": dict(**OSS, **SMALL | dict(hidden_size=32, intermediate_size=32),
                          quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])),
}
# Latent attention: values narrower than keys, as wide, queries with and without a latent, both ways of pairing what is
# rotated, YaRN with a factor on scores; routers as in SEEDS' families.
LATENT = {**SMALL, "num_key_value_heads": 2, "head_dim": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "n_routed_experts": 8,
          "num_experts_per_tok": 3, "moe_intermediate_size": 8, "tie_word_embeddings": False}
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.7, beta_fast=32,
            beta_slow=1)
SEEDS |= dict(deepseek_v3=103, deepseek_v3_halves=104, deepseek_v2=105, glm4_moe_lite=106)
CASES |= {
    "deepseek_v3": dict(model_type="deepseek_v3", q_lora_rank=12, qk_nope_head_dim=8, v_head_dim=6, n_group=4, topk_group=2,
                        routed_scaling_factor=1.7, first_k_dense_replace=1, rope_theta=1e4, rope_scaling=YARN, **LATENT),
    "deepseek_v3_halves": dict(model_type="deepseek_v3", q_lora_rank=None, qk_nope_head_dim=6, v_head_dim=8, n_group=1,
                               topk_group=1, rope_interleave=False, first_k_dense_replace=1, n_shared_experts=2,
                               rope_theta=1e4, **LATENT),
    "deepseek_v2": dict(model_type="deepseek_v2", q_lora_rank=None, qk_nope_head_dim=8, v_head_dim=8, topk_method="greedy",
                        routed_scaling_factor=1.3, first_k_dense_replace=1, rope_theta=1e4, **LATENT),
    "glm4_moe_lite": dict(model_type="glm4_moe_lite", q_lora_rank=12, qk_nope_head_dim=8, v_head_dim=12, n_group=1,
                          topk_group=1, routed_scaling_factor=1.8, rope_theta=1e6, **LATENT),
}
FUSED = ["gemma4_moe", "qwen3_5_moe", "gpt_oss", "gpt_oss_mxfp4"]  # experts stay in one tensor
EXPERTS = {"num_experts", "n_routed_experts", "num_local_experts"}
LENGTHS = [37, 5, 20]
STEPS = 12
TEMPERATURE = 0.7


def plus_one(config):
    return config["model_type"].startswith(("gemma", "qwen3_5", "qwen3_next")) and "gemma4" not in config["model_type"]


def build(config):
    # Newer transformers takes rope_theta inside rope_parameters and reads the old form.
    config = {k: v for k, v in config.items() if k != "quantization_config"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32,
                                             attn_implementation="eager",
                                             **({"experts_implementation": "eager"} if "_moe" in config["model_type"] or "n_routed_experts" in config or "enable_moe_block" in config else {})).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_((0 if plus_one(config) and "linear_attn" not in name else 1) + 0.2 * torch.randn_like(p))
            elif name.endswith(("router.scale", "per_expert_scale")):
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif "bias" in name or "sinks" in name:
                p.copy_(0.2 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())
        for name, b in model.named_buffers():
            if "e_score_correction_bias" in name:
                b.copy_((0.3 * torch.randn_like(b)).bfloat16().float())
            if "layer_scalar" in name:
                b.copy_((1 + 0.3 * torch.randn_like(b)).bfloat16().float())
    return model


def greedy(model, prompt):
    ids = prompt.clone()
    for _ in range(STEPS):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids[None]).logits[0, -1].argmax()[None]])
    return ids[len(prompt):]


def golden(model, vocab):
    sequences = [torch.randint(vocab, (n,)) for n in LENGTHS]
    n = sum(LENGTHS)
    target, d_logprob, d_entropy = torch.randint(vocab, (n,)), torch.randn(n) / n, torch.randn(n) / n
    logits = torch.cat([model(s[None]).logits[0] for s in sequences])
    logp = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    entropy = -(logp.exp() * logp).sum(-1)
    logprob = logp.gather(1, target[:, None])[:, 0]
    ((d_logprob * logprob).sum() + (d_entropy * entropy).sum()).backward()
    out = {"ids": torch.cat(sequences), "offset": torch.tensor([0] + LENGTHS).cumsum(0), "logits": logits,
           "target": target, "d_logprob": d_logprob, "d_entropy": d_entropy, "logprob": logprob,
           "entropy": entropy, "greedy": torch.stack([greedy(model, s[:5]) for s in sequences])}
    return {"golden." + k: v.detach().float().contiguous() for k, v in out.items()}


def split_experts(tensors):
    """Experts that transformers holds in one tensor, under the names that checkpoints have for each."""
    out = {}
    for name, t in tensors.items():
        if ".experts." not in name or t.dim() != 3:
            out[name] = t
            continue
        stem, kind = name.rsplit(".", 1)
        for e, w in enumerate(t):
            parts = zip(("gate_proj", "up_proj"), w.chunk(2)) if kind == "gate_up_proj" else [("down_proj", w)]
            for part, x in parts:
                out[f"{stem}.{e}.{part}.weight"] = x.contiguous().clone()
    return out


def to_mxfp4(model):
    """Random blocks and scales of experts; the model gets what transformers widens them to."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    out = {}
    for name, p in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, inputs, outputs = p.shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(119, 124, (experts, outputs, inputs // 32), dtype=torch.uint8)
        out |= {name + "_blocks": blocks, name + "_scales": scales}
        with torch.no_grad():
            p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    return out


def revert(model, tensors):
    """Weights and gradients under the names that transformers saves them under."""
    sets = {"": {}, "grad.": {}}
    out = {}
    for name, t in tensors.items():
        prefix = "grad." if name.startswith("grad.") else ""
        if name.startswith("golden."):
            out[name] = t
        else:
            sets[prefix][name[len(prefix):]] = t
    for prefix, part in sets.items():
        out |= {prefix + k: t.contiguous().clone() for k, t in revert_weight_conversion(model, part).items()}
    return out


def enclose(tensors, config, model_type, architecture, base, head, beside):
    """The tensors and the config of a model of text and images around a text."""
    out = {}
    for name, t in tensors.items():
        prefix = "grad." if name.startswith("grad.") else ""
        rest = name[len(prefix):]
        for old, new in ("model.", base), ("lm_head.", head):
            if rest.startswith(old):
                rest = new + rest[len(old):]
                break
        out[prefix + rest] = t
    out |= {name: torch.zeros(4) for name in beside}
    return out, dict(architectures=[architecture], model_type=model_type, eos_token_id=config.pop("eos_token_id"),
                     tie_word_embeddings=config["tie_word_embeddings"], text_config=config, vision_config={"depth": 1})


def main(folder, names):
    for i, (name, case) in enumerate(CASES.items()):
        if names and name not in names:
            continue
        torch.manual_seed(SEEDS.get(name, i))
        config = {**BASE, **case}
        model = build(config)
        blocks = to_mxfp4(model) if "quantization_config" in config else {}
        tensors = golden(model, config["vocab_size"])
        tensors |= blocks
        for k, p in model.named_parameters():
            tensors["grad." + k] = p.grad.contiguous()
            if k + "_blocks" in blocks:
                continue
            tensors[k] = p.detach().bfloat16().contiguous()
        for k, b in model.named_buffers():
            if "e_score_correction_bias" in k or "layer_scalar" in k:
                tensors[k], tensors["grad." + k] = b.detach().clone(), torch.zeros_like(b)
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        if name in REVERTED:
            tensors = revert(model, tensors)
        elif name not in FUSED:
            tensors = split_experts(tensors)
        if name in OUTER:
            tensors, config = enclose(tensors, config, *OUTER[name])
        save_file(tensors, os.path.join(path, "model.safetensors"))
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/model", sys.argv[2:])
