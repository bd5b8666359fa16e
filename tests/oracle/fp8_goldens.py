#!/usr/bin/env python3
"""Numbers of FP8 (ops/model/fp8.h) from torch.float8_e4m3fn, for tests/unit/ops/kernels/test_fp8.c: roundings of fp32,
what each code is, weights quantised by blocks of 128 x 128, rows by 128, and products of these in float64.

    python3 tests/oracle/fp8_goldens.py > tests/golden/fp8.json      # needs torch
"""
import json
import struct
import sys

import torch

E4M3, B, SMALLEST = torch.float8_e4m3fn, 128, 2.0**-100
T, IN, OUT = 3, 300, 260  # blocks that are not full on both sides


def lcg(n, seed):
    """As in the test: the same numbers, each times a power of two."""
    out = []
    for i in range(n):
        seed = (seed * 1664525 + 1013904223) % 2**32
        out.append(((seed >> 8) * 2.0**-23 - 1) * 2.0 ** (i * 7 % 13 - 6))
    return torch.tensor(out, dtype=torch.float32)


def quantise(x):
    """A block: codes, its scale, and what they mean."""
    m = x.abs().max().clamp(min=SMALLEST)
    q = (x * (torch.tensor(448.0) / m)).to(E4M3)
    s = m / 448.0
    return q, s, q.double() * s.double()


def blocks(x, rows):
    codes, scales, means = torch.empty_like(x, dtype=torch.uint8), [], torch.empty_like(x, dtype=torch.float64)
    for r in range(0, x.shape[0], rows):
        for c in range(0, x.shape[1], B):
            at = (slice(r, r + rows), slice(c, c + B))
            q, s, mean = quantise(x[at])
            codes[at], means[at] = q.view(torch.uint8), mean
            scales.append(s.item())
    return codes, scales, means


def fnv(codes):
    h = 0xCBF29CE484222325
    for byte in codes.flatten().tolist():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def bits(x):
    return [struct.unpack("<I", struct.pack("<f", v))[0] for v in x.tolist()]


every = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
finite = every[~every.isnan()].sort().values.unique()
between = (finite[:-1] + finite[1:]) / 2  # ties
some = torch.cat([between, torch.nextafter(between, torch.tensor(0.0)), torch.nextafter(between, torch.tensor(500.0)),
                  lcg(200, 3) * 5, torch.tensor([0.0, -0.0, 448.0, 2.0**-9, 2.0**-10, 2.0**-10 * 1.01, 2.0**-30])])
w = lcg(OUT * IN, 1).view(OUT, IN)
w[128:256, 0:128] = 0
w[0:128, 128:256] *= 2.0**60
x, dy = lcg(T * IN, 2).view(T, IN), lcg(T * OUT, 4).view(T, OUT)
x[1, 128:256] = 0
codes, scales, wq = blocks(w, B)
xcodes, _, xq = blocks(x, 1)
_, _, dyq = blocks(dy, 1)
json.dump({"torch": torch.__version__,
           "values": [None if v != v else v for v in every.tolist()],
           "rounded": list(zip(bits(some), some.to(E4M3).view(torch.uint8).tolist())),
           "scales": scales, "codes": fnv(codes), "row_codes": fnv(xcodes),
           "y": (xq @ wq.T).flatten().tolist(), "dx": (dyq @ wq).flatten().tolist()}, sys.stdout)
