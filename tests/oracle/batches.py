"""The random batches that graphs of the catalogue are compared on: tests/unit/graphs/loader/test_catalogue.c draws the same
from the same seeds. Responses of different lengths, rows without a token, groups of one, ties, tokens of tools."""
import numpy as np

try:
    import torch

    torch.set_default_dtype(torch.float64)
except ImportError:  # its columns are there without; matrices are not
    torch = None

BATCHES = 52


class Random:
    """splitmix64, and doubles of its upper 53 bits."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n

    def within(self, lo, hi):
        return lo + (hi - lo) * ((self.next() >> 11) * 2.0**-53)


def below_zero(x):
    """A log-prob; no two are alike, so that nothing hangs on who is first among equals."""
    return x if x < -0.01 else -0.01 - 0.001 * (x + 0.01)


class Batch:
    """Odd numbers have tokens of tools between those of the model; every seventh has groups of one only; the scores are
    real, 0 or 1, equal within a group, or in halves, in turn."""

    def __init__(self, number):
        r = Random(1000 + number)
        self.turns = number % 2
        self.groups, self.lengths, self.mask = [], [], []
        for group in range(2 + r.below(2)):
            for _ in range(1 if number % 7 == 0 else 1 + r.below(3)):
                self.groups.append(group)
        for row in range(len(self.groups)):
            n = 1 + r.below(4)
            if row < 2:
                n = max(n, 2)
            empty = r.below(8) == 0
            mask = [0 if empty else int(not self.turns or r.below(4) > 0) for _ in range(n)]
            if row < 2:
                mask[0] = mask[1] = 1
            self.lengths.append(n)
            self.mask.append(mask)
        rows, shared = len(self.groups), [r.within(-1, 1) for _ in range(3)]
        draw = [lambda g: r.within(-1, 1), lambda g: float(r.below(2)), lambda g: shared[g], lambda g: r.below(3) / 2]
        self.score = [draw[number % 4](g) for g in self.groups]
        self.written = [float(r.below(2)) for _ in range(rows)]
        self.greedy = [r.within(-1, 1) for _ in range(max(self.groups) + 1)]
        self.advantage = [0.0 if r.below(8) == 0 else r.within(-2, 2) for _ in range(rows)]
        columns = {name: [] for name in ("old", "logprob", "sampled", "ref", "sum_p2", "value", "values", "returns")}
        for n in self.lengths:
            for t in range(n):
                old = r.within(-3, -0.05)
                far = r.below(8) == 0
                wide = 4.0 if far else 0.6
                columns["old"].append(old)
                columns["logprob"].append(below_zero(old + r.within(-wide, wide)))
                columns["sampled"].append(below_zero(old + r.within(-wide / 4, wide / 4)))
                columns["ref"].append(r.within(-3, -0.05))
                columns["sum_p2"].append(r.within(0, 1))
                columns["values"].append(r.within(-1, 1))
                columns["value"].append(r.within(-1, 1))
                columns["returns"].append(r.within(-1, 1))
        self.columns = columns

    def rows(self):
        return len(self.lengths)

    def matrix(self, flat, fill=0.0):
        out, at = torch.full((self.rows(), max(self.lengths)), fill), 0
        for i, n in enumerate(self.lengths):
            out[i, :n] = torch.tensor(flat[at : at + n])
            at += n
        return out

    def tokens(self, name):
        return self.matrix(self.columns[name], -0.5)

    def masks(self):
        return self.matrix([float(m) for row in self.mask for m in row])

    def last(self, score):
        """score on each row's last token whose mask is 1; nowhere in a row that has none."""
        out = torch.zeros(self.rows(), max(self.lengths))
        for i, mask in enumerate(self.mask):
            if any(mask):
                out[i, max(t for t, m in enumerate(mask) if m)] = score[i]
        return out

    def first(self, score):
        """score as verl sums it up: over all columns, masked ones too, so that no row is without."""
        out = torch.zeros(self.rows(), max(self.lengths))
        out[:, 0] = torch.tensor(score)
        return out

    def index(self):
        return np.array([f"group{g}" for g in self.groups], dtype=object)


# ---- printing ------------------------------------------------------------------------------------------------------


def number(x):
    text = "%.8g" % x
    return "0" if text == "-0" else text


def put(name, values):
    values = [float(v) for v in values]
    assert all(np.isfinite(values)), name
    print(name, " ".join(number(v) for v in values))


def put_rows(name, b, matrix):
    """One number a row that has a token: an outcome estimator's, the same on all of them."""
    values = []
    for i, mask in enumerate(b.mask):
        row = [matrix[i, t].item() for t, m in enumerate(mask) if m]
        assert all(v == row[0] for v in row)
        values += row[:1]
    put(name, values)


def put_tokens(name, b, matrix):
    put(name, [matrix[i, t].item() for i, mask in enumerate(b.mask) for t, m in enumerate(mask) if m])
