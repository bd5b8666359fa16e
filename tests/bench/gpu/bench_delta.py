#!/usr/bin/env python3
"""The gated delta rule by flash-linear-attention's Triton kernels (PyPI: fla-core, flash-linear-attention), beside
tests/bench/gpu/bench_delta.c: the same shapes, lines of JSON. The rule alone takes q and k normalised already, as
bench_delta's does.

    python3 tests/bench/gpu/bench_delta.py [SEQUENCES LENGTH HEADS]

fla-core 0.6 refuses its gated backward pass on Hopper with Triton 3.4 to 3.7.0, which compile it wrongly. There this
takes the time of what they compile all the same, and says so in the row: its numbers are not to be relied on, its work
is the same.
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from fla.ops.common import chunk_o
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

B, T, H = map(int, sys.argv[1:4]) if len(sys.argv) > 3 else (4, 8192, 32)
D = 128


def seconds(body, times=9):
    took = []
    for i in range(-3, times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        body()
        end.record()
        torch.cuda.synchronize()
        if i >= 0:
            took.append(begin.elapsed_time(end))
    return statistics.median(took)


def main():
    torch.manual_seed(1)
    kind = dict(device="cuda", dtype=torch.bfloat16)
    q = F.normalize(torch.randn(1, B * T, H, D, **kind), dim=-1).requires_grad_()
    k = F.normalize(torch.randn(1, B * T, H, D, **kind), dim=-1).requires_grad_()
    v = torch.randn(1, B * T, H, D, **kind).requires_grad_()
    g = F.logsigmoid(torch.randn(1, B * T, H, device="cuda")).requires_grad_()
    beta = torch.rand(1, B * T, H, **kind).requires_grad_()
    offset = torch.arange(0, B * T + 1, T, device="cuda", dtype=torch.int32)

    def forward():
        return chunk_gated_delta_rule(q, k, v, g=g, beta=beta, cu_seqlens=offset)[0]

    with torch.no_grad():
        ahead = seconds(forward)
    out = forward()
    dout = torch.randn_like(out)
    wrong = chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1
    chunk_o.TRITON_ABOVE_3_7_1 = True
    back = seconds(lambda: torch.autograd.grad(out, (q, k, v, g, beta), dout, retain_graph=True))
    for name, took in (("forward", ahead), ("backward, wrongly compiled" if wrong else "backward", back)):
        row = f"delta rule, {name}, {B} x {T}, {H} heads of {D}"
        print(json.dumps({"row": row, "side": "flash-linear-attention", "value": took, "unit": "ms"}), flush=True)


main()
