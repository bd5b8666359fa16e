"""Moments in 8 bits in float64, written from their definition: writes tests/golden/moments.txt.

    python3 tests/oracle/moment_goldens.py > tests/golden/moments.txt

ops/simd/moments.h defines the codes. A scale is the largest of 64; a code stands for a value, and what lies between two values
goes to the upper one with the probability that makes the mean right. Here values are listed and searched, where the C code
cuts bits of floats. Lines: `m CODE VALUE` and `v CODE VALUE`, what codes stand for with scale 1 (of v: the root), and `nearest K X
CODE`, which code X / scale gets (K: m or v). Points beside a border between two codes are left out: floats round there.
"""
import math


def log_steps(n, each):
    """The n largest values of 2^e (1 + k / each), k from 0 to each - 1, up to 1, ascending."""
    return [2.0 ** (i // each) * (1 + i % each / each) for i in range(1 - n, 1)]


B = 9 / 2**19
M = [(t - B) / (1 - B) for t in log_steps(128, 8)]  # of codes 0 to 127
V = [0.0] + log_steps(255, 16)  # of codes 0 to 255
assert len(M) == 128 and len(V) == 256 and abs(M[0]) < 1e-15 and M[127] == V[255] == 1

for code, value in enumerate(M):
    print("m", code, "%.12g" % abs(value))
for code, value in enumerate(V):
    print("v", code, "%.12g" % value)


def nearest(values, x, least):
    best = min(range(len(values)), key=lambda c: (abs(values[c] - x), c))
    return max(best, least if x > 0 else 0)


def border(values, x):
    """How near x is to the middle of two values, beside their distance."""
    above = next((i for i, v in enumerate(values) if v > x), len(values) - 1)
    low, high = values[above - 1], values[above]
    return abs((x - low) / (high - low) - 0.5)


for k in range(400):
    x = abs(math.sin(3 * k + 1)) ** (1 + k % 9)
    if border(M, x) > 1e-3:
        print("nearest m %.17g %d" % (x, nearest(M, x, 0)))
    if border(V, x) > 1e-3:
        print("nearest v %.17g %d" % (x, nearest(V, x, 1)))
