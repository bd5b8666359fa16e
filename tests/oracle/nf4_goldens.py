#!/usr/bin/env python3
"""Numbers of NF4 with double quantisation (ops/model/nf4.h) for tests/unit/ops/model/test_nf4.c, from bitsandbytes:
weights of 4-bit codes, and 8-bit codes with their scales, are those of its native library on the CPU
(libbitsandbytes_cpu.so), which is called without torch. What it has in Python alone, the 16 values, the 256 values of
the dynamic form and the nearest of the 16, follows its functional.py and backends/default/ops.py, in fp32 of numpy.

    python3 tests/oracle/nf4_goldens.py LIBBITSANDBYTES_CPU.SO > tests/golden/nf4.json    # bitsandbytes 0.50.2
"""
import ctypes
import json
import sys

import numpy as np

F = np.float32
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], F)
lib = ctypes.CDLL(sys.argv[1])


def lcg(n, seed):
    """As in the test: sums of four even numbers, rows of other sizes."""
    out = []
    for i in range(n):
        x = F(0)
        for _ in range(4):
            seed = (seed * 1664525 + 1013904223) % 2**32
            x += F(seed >> 8) * F(2.0**-23) - F(1)
        out.append(x * F(2.0 ** (i // 640 % 5 - 6)))
    return np.array(out, F)


def linspace(n):
    """torch.linspace(0.1, 1, n), fp32: from the nearer end."""
    step = (F(1) - F(0.1)) / F(n - 1)
    return np.array([F(0.1) + step * F(i) if i < n // 2 else F(1) - step * F(n - 1 - i) for i in range(n)], F)


def dynamic_map():
    data = [F(0), F(1)]
    for i in range(7):
        at = linspace(2**i + 1)
        means = (at[:-1] + at[1:]) / F(2)
        data += [s * F(10.0 ** (i - 6)) * m for m in means for s in (F(1), F(-1))]
    return np.sort(np.array(data, F))


def ptr(x):
    return x.ctypes.data_as(ctypes.c_void_p)


def n(x):
    return ctypes.c_longlong(x)


def quantize_4bit(w):
    absmax, scaled = [], []
    for at in range(0, len(w), 64):
        block = w[at:at + 64]
        m = np.abs(block).max()
        if len(block) == 64:
            scaled.append(np.clip(block * (F(1) / max(m, F(1e-38))), -1, 1))
        else:
            m = max(m, F(1e-38))
            scaled.append(np.clip(block / m, -1, 1))
        absmax.append(m)
    scaled = np.concatenate(scaled).astype(F)
    codes = np.searchsorted((NF4[:-1] + NF4[1:]) / F(2), np.append(scaled, np.zeros(len(w) % 2, F)), side="left")
    return (codes[::2] << 4 | codes[1::2]).astype(np.uint8), np.array(absmax, F)


def case(count, seed):
    w = lcg(count, seed)
    packed, absmax = quantize_4bit(w)
    mean = F(absmax.astype(np.float64).mean())
    code, small = dynamic_map(), np.zeros(len(absmax), np.uint8)
    scales, opened = np.zeros(-(-len(absmax) // 256), F), np.zeros(len(absmax), F)
    shifted = absmax - mean
    lib.cquantize_blockwise_cpu_fp32(ptr(code), ptr(shifted), ptr(scales), ptr(small), n(256), n(len(absmax)))
    lib.cdequantize_blockwise_cpu_fp32(ptr(code), ptr(small), ptr(scales), ptr(opened), n(256), n(len(absmax)))
    opened += mean
    means = np.zeros(count, F)
    lib.cdequantize_blockwise_cpu_nf4_fp32(ptr(packed), ptr(opened), ptr(means), n(64), n(1), n(count))
    return {"n": count, "seed": seed, "mean": float(mean),
            "codes_sum": fnv(packed), "small": small.tobytes().hex(), "scales": [float(x) for x in scales],
            "opened_sum": fnv(means.view(np.uint8)), "opened": [float(x) for x in means[:80]]}


def fnv(codes):
    h = 0xCBF29CE484222325
    for byte in codes.tolist():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


json.dump([case(64 * 300, 1), case(1000, 2), case(64 * 256, 3), case(134, 4)], sys.stdout, indent=1)
