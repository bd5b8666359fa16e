"""The work of tests/bench/bench_update.c in PyTorch and transformers. bench_update_torch.py [threads [steps]]"""
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

threads, steps = (int(a) for a in (sys.argv[1:] + ["2", "6"][len(sys.argv) - 1:]))
SEQS, LENGTH = 8, 256
torch.set_num_threads(threads)
config = LlamaConfig(vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
                     num_attention_heads=8, num_key_value_heads=4, head_dim=64, max_position_embeddings=2048,
                     rms_norm_eps=1e-6, tie_word_embeddings=True, attn_implementation="sdpa", use_cache=False)
model = LlamaForCausalLM(config).float().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
ids = (torch.arange(SEQS * LENGTH) * 2654435761 % 2**32 >> 20).reshape(SEQS, LENGTH)
target = ids.reshape(-1).roll(-1)
print(f"torch {torch.__version__}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, "
      f"{threads} threads")
best = 1e30
for i in range(steps):
    t0 = time.perf_counter()
    logits = model(ids).logits.reshape(-1, config.vocab_size)
    loss = -torch.log_softmax(logits, -1).gather(1, target[:, None]).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    seconds = time.perf_counter() - t0
    print(f"step {i + 1}: loss {loss.item():.4f}, {seconds:.3f} s")
    best = min(best, seconds)
print(f"best: {SEQS * LENGTH / best:.0f} tokens/s")
