#!/usr/bin/env python3
"""Numbers of the gated delta rule from the torch code of Hugging Face transformers (models/qwen3_next), for
tests/unit/ops/kernels/test_delta.c: rows of in (ops/kernels/delta.h) through convolution, chunked rule and gated
norm, with gradients by autograd; the recurrent rule must agree.

    python3 tests/oracle/delta_goldens.py > tests/golden/delta.json      # needs torch and transformers
"""
import json
import sys

import torch
import torch.nn.functional as F
from transformers.models.qwen3_next import modeling_qwen3_next as m

torch.manual_seed(5)
HK, HV, DK, DV, CONV, T, EPS = 1, 2, 8, 8, 4, 67, 1e-6
C = 2 * HK * DK + HV * DV


def leaf(*shape, scale=1.0):
    return (scale * torch.randn(*shape)).requires_grad_()


x, conv, norm = leaf(T, C + HV * DV + 2 * HV), leaf(C, CONV, scale=0.5), leaf(DV)
a_log, dt_bias = leaf(HV, scale=0.5), leaf(HV)
dout = torch.randn(T, HV * DV)


def mix(rule):
    qkv, z, b, a = x.split([C, HV * DV, HV, HV], dim=-1)
    padded = F.pad(qkv.T[None], (CONV - 1, 0))
    qkv = F.silu(F.conv1d(padded, conv[:, None], groups=C))[0].T
    q, k, v = qkv.split([HK * DK, HK * DK, HV * DV], dim=-1)
    q = q.reshape(1, T, HK, DK).repeat_interleave(HV // HK, dim=2)
    k = k.reshape(1, T, HK, DK).repeat_interleave(HV // HK, dim=2)
    g = -a_log.float().exp() * F.softplus(a + dt_bias)
    out, state = rule(q, k, v.reshape(1, T, HV, DV), g=g[None], beta=b.sigmoid()[None], initial_state=None,
                      output_final_state=True, use_qk_l2norm_in_kernel=True)
    gated = m.Qwen3NextRMSNormGated(DV, eps=EPS)
    gated.weight = torch.nn.Parameter(torch.ones(DV))
    y = gated(out.reshape(-1, DV), z.reshape(-1, DV)) * norm
    return y.reshape(T, HV * DV), state


out, state = mix(m.torch_chunk_gated_delta_rule)
again, last = mix(m.torch_recurrent_gated_delta_rule)
assert torch.allclose(out, again, atol=1e-5) and torch.allclose(state, last, atol=1e-5)
out.backward(dout)


def numbers(t):
    return [float(f"{v:.7g}") for v in t.detach().flatten().tolist()]


json.dump({"dims": [HK, HV, DK, DV, CONV], "tokens": T, "eps": EPS, "in": numbers(x), "conv": numbers(conv),
           "a_log": numbers(a_log), "dt_bias": numbers(dt_bias), "norm": numbers(norm), "dout": numbers(dout),
           "out": numbers(out), "state": numbers(state), "d_in": numbers(x.grad), "d_conv": numbers(conv.grad),
           "d_a_log": numbers(a_log.grad), "d_dt_bias": numbers(dt_bias.grad), "d_norm": numbers(norm.grad)},
          sys.stdout)
