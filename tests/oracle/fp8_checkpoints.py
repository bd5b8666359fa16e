"""Write tests/golden/fp8/NAME/{config.json,model.safetensors,weights.json}: tiny random checkpoints in FP8 as they are
published, and of each tensor what torch makes of it: the CRC-32 of its weights in fp32. Blocks of 128 x 128 that are not
full in either direction, scales of two types, rows of several tensors in turn (qwen3_next), experts, latent attention
(deepseek_v3), and one scale for a tensor beside scales for activations (ministral). Two of the tensors hold every value of
E4M3 that is a number.
"""
import json
import os
import zlib

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

BASE = dict(vocab_size=16, num_hidden_layers=1, rms_norm_eps=1e-6, max_position_embeddings=64, bos_token_id=None, eos_token_id=1,
            tie_word_embeddings=False)
BLOCK = 128
CASES = {
    "qwen3": (dict(model_type="qwen3", hidden_size=136, intermediate_size=144, num_attention_heads=2, num_key_value_heads=1,
                   head_dim=16), torch.bfloat16),
    "qwen3_next": (dict(model_type="qwen3_next", layer_types=["linear_attention"], hidden_size=40, num_attention_heads=2,
                        num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                        linear_key_head_dim=32, linear_value_head_dim=32, num_experts=2, num_experts_per_tok=1, mlp_only_layers=[],
                        decoder_sparse_step=1, intermediate_size=24, moe_intermediate_size=8, shared_expert_intermediate_size=8),
                   torch.float32),
    "deepseek_v3": (dict(model_type="deepseek_v3", hidden_size=40, intermediate_size=136, num_attention_heads=2,
                         num_key_value_heads=2, head_dim=8, q_lora_rank=24, kv_lora_rank=136, qk_nope_head_dim=16,
                         qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                         n_group=2, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5), torch.float32),
    "ministral": (dict(model_type="ministral", hidden_size=24, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
                       head_dim=16, sliding_window=8), None),
}
PLAIN = ("embed_tokens", "norm", "lm_head", "mlp.gate.weight", "conv1d", "in_proj_ba", "shared_expert_gate")


def blocks(w, scale):
    """Of each block its scale, over all of the block."""
    rows, cols = w.shape
    return scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :cols]


def quantize(name, w, dtype, out):
    """w in E4M3 with its scales to out; returns what it stands for."""
    rows, cols = w.shape
    if dtype is None:  # one scale
        scale = (w.abs().amax() / 448).bfloat16()
        of = scale.float().expand(rows, cols)
        out[name.replace(".weight", ".activation_scale")] = torch.tensor(0.5, dtype=torch.bfloat16)
    else:
        grid = (-(-rows // BLOCK), -(-cols // BLOCK))
        scale = torch.empty(grid)
        for i in range(grid[0]):
            for j in range(grid[1]):
                scale[i, j] = w[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK].abs().amax() / 448
        scale = scale.to(dtype)
        of = blocks(w, scale.float())
    q = (w / of).to(torch.float8_e4m3fn)
    if "down_proj" in name and q.numel() >= 256:  # all values but the two NaN
        codes = torch.arange(256, dtype=torch.uint8)
        codes = codes[(codes & 0x7F) != 0x7F]
        q.view(torch.uint8).view(-1)[:len(codes)] = codes
    out[name], out[name + "_scale_inv"] = q, scale
    return q.float() * of


def main():
    from make_model_goldens import split_experts
    for i, (name, (case, dtype)) in enumerate(CASES.items()):
        torch.manual_seed(i)
        config = {**BASE, **case}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
        stored, weights = {}, {}
        tensors = dict(model.named_parameters()) | {k: b for k, b in model.named_buffers() if "e_score" in k}
        for k, p in split_experts({k: p.detach() for k, p in tensors.items()}).items():
            w = p.float().clone().normal_(std=0.3)
            if k.endswith(".weight") and w.dim() == 2 and not any(part in k for part in PLAIN):
                weights[k] = quantize(k, w, dtype, stored)
            else:
                stored[k] = w if "e_score" in k else w.bfloat16()
                weights[k] = stored[k].float()
        config["quantization_config"] = dict(quant_method="fp8", activation_scheme="static" if dtype is None else "dynamic",
                                             weight_block_size=None if dtype is None else [BLOCK, BLOCK])
        path = os.path.join("tests/golden/fp8", name)
        os.makedirs(path, exist_ok=True)
        save_file(stored, os.path.join(path, "model.safetensors"))
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")
        with open(os.path.join(path, "weights.json"), "w") as f:
            json.dump({k: zlib.crc32(w.contiguous().numpy().tobytes()) for k, w in sorted(weights.items())}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
