"""Losses and gradients in float64 PyTorch on ragged batches: writes tests/golden/expr_losses.txt.

    python tests/oracle/expr_losses.py > tests/golden/expr_losses.txt

Written from the published formulas on padded tensors, apart from the expressions that tests/unit/graphs/expr/test_expr_golden.c
compares with them. Every number is printed so that it reads back exactly.
"""
import torch

torch.manual_seed(7)
LO, HI = 0.2, 0.28


def pad(rows, width, fill=float("nan")):
    out = torch.full((len(rows), width), fill, dtype=torch.float64)
    for i, r in enumerate(rows):
        out[i, : len(r)] = r
    return out


class Batch:
    def __init__(self, lengths, groups):
        self.lengths, self.groups = lengths, groups
        n, width = sum(lengths), max(lengths)
        self.keep = torch.zeros(len(lengths), width, dtype=torch.bool)
        flat = (torch.rand(n) > 0.2).tolist()
        self.flat_mask, self.index, at = flat, [], 0
        for i, length in enumerate(lengths):
            self.index.append((at, at + length))
            for t in range(length):
                self.keep[i, t] = flat[at + t]
            at += length
        self.m = self.keep.double()
        self.columns = {}
        for name, lo, hi in [("logprob", -2.5, -0.05), ("entropy", 0.1, 2), ("value", -1, 1), ("old_logprob", -2.5, -0.05),
                             ("ref_logprob", -2.5, -0.05), ("adv", -2, 2), ("values", -1, 1), ("returns", -1, 1)]:
            self.columns[name] = (lo + (hi - lo) * torch.rand(n)).float()
        self.advantage = (torch.rand(len(lengths)) * 4 - 2).float()

    def get(self, name):
        """Padded; what is masked is a harmless number, so that no gradient of torch's is NaN."""
        x = self.columns[name].double()
        p = pad([x[a:b] for a, b in self.index], max(self.lengths), -0.5)
        return torch.where(self.keep, p, torch.full_like(p, -0.5))


def token_mean(b, x):
    return (x * b.m).sum() / b.m.sum()


def seq_mean(b, x):
    return (x * b.m).sum(1) / b.m.sum(1).clamp(min=1)


def clipped(b, f, a, r):
    return torch.maximum(-a * r, -a * r.clamp(1 - LO, 1 + HI))


def ppo(b, f):
    r = (f["logprob"] - b.get("old_logprob")).exp()
    x = (b.get("ref_logprob") - f["logprob"]).clamp(-20, 20)
    return token_mean(b, clipped(b, f, b.advantage.double()[:, None], r) + 0.1 * (x.exp() - x - 1).clamp(-10, 10))


def dual_clip(b, f):
    a = b.get("adv")
    ell = clipped(b, f, a, (f["logprob"] - b.get("old_logprob")).exp())
    return (torch.where(a < 0, torch.minimum(ell, -a * 3), ell) * b.m).sum(1).mean()


def gspo(b, f):
    a, lp = b.advantage.double()[:, None], f["logprob"]
    u = seq_mean(b, lp - b.get("old_logprob"))[:, None]
    q = (lp - lp.detach() + u.detach()).clamp(max=10).exp()
    return seq_mean(b, clipped(b, f, a, q)).mean()


def cispo(b, f):
    r = (f["logprob"] - b.get("old_logprob")).exp().clamp(1 - LO, 1 + HI).detach()
    return token_mean(b, -r * b.get("adv") * f["logprob"])


def sapo(b, f):
    a = b.get("adv")
    tau = torch.where(a > 0, torch.ones_like(a), torch.full_like(a, 1.05))
    r = (f["logprob"] - b.get("old_logprob")).exp()
    return seq_mean(b, -4 / tau * torch.sigmoid(tau * (r - 1)) * a).mean()


def geo_mean(b, f):
    a = b.advantage.double()[:, None]
    d = f["logprob"] - b.get("old_logprob")
    s = a.sign()
    dm = s * torch.minimum(s * d, s * d.clamp(-0.2, 0.2))
    n = b.m.sum(1) + 1e-8
    return -((a * b.m).sum(1) / n * ((dm * b.m).sum(1) / n).exp()).mean()


def dppo_tv(b, f):
    a, lp, old = b.get("adv"), f["logprob"], b.get("old_logprob")
    gap = (lp.exp() - old.exp()).detach()
    keep = torch.where(a > 0, gap <= HI, gap >= -LO).double()
    return token_mean(b, -a * (lp - old).exp().detach().clamp(max=20) * lp * keep)


def dppo_kl(b, f):
    a, lp, old = b.get("adv"), f["logprob"], b.get("old_logprob")
    p, q = lp.exp().detach(), old.exp()
    k = q * (old - lp.detach()) + (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
    keep = torch.where(a > 0, (k <= HI) | (p <= q), (k <= LO) | (p >= q)).double()
    return token_mean(b, -a * (lp - old).exp().detach().clamp(max=20) * lp * keep)


def dro(b, f):
    d = f["logprob"] - b.get("old_logprob")
    return token_mean(b, -(b.get("adv") * f["logprob"] - 0.5 * 0.3 * d**2))


def kl_cov(b, f):
    a, lp = b.get("adv"), f["logprob"]
    d = lp - b.get("old_logprob")
    cov = ((a - token_mean(b, a)) * (lp - token_mean(b, lp))).detach()
    cov = cov.masked_fill(~b.keep, -float("inf"))
    chosen = torch.zeros(cov.numel(), dtype=torch.bool)
    chosen[cov.flatten().topk(3).indices] = True
    return token_mean(b, -a * d.exp() + torch.where(chosen.view_as(cov), 0.5 * d.abs(), torch.zeros_like(d)))


def value_clip(b, f):
    v, old, ret = f["value"], b.get("values"), b.get("returns")
    vc = torch.minimum(torch.maximum(v, old - 0.5), old + 0.5)
    return 0.5 * token_mean(b, torch.maximum((v - ret) ** 2, (vc - ret) ** 2))


def straight_through(b, f):
    x = b.get("ref_logprob") - f["logprob"]
    k3, k2 = x.exp() - x - 1, 0.5 * x**2
    return token_mean(b, k2 - k2.detach() + k3.detach()) - 0.01 * token_mean(b, f["entropy"])


def whitened(b, f):
    x, n = f["logprob"].exp(), b.m.sum()
    mu = (x * b.m).sum() / n
    var = (((x - mu) ** 2) * b.m).sum() / (n - 1)
    return token_mean(b, (x - mu) * torch.rsqrt(var + 1e-8) * b.get("adv"))


def group_normalised(b, f):
    s = (f["logprob"] * b.m).sum(1)
    g = torch.tensor(b.groups)
    total = 0
    for k in range(max(b.groups) + 1):
        x = s[g == k]
        if len(x) > 1:
            total = total + ((x - x.mean()) / (x.std() + 1e-6) * b.advantage.double()[g == k]).sum()
    return total / len(s)


LOSSES = [ppo, dual_clip, gspo, cispo, sapo, geo_mean, dppo_tv, dppo_kl, dro, kl_cov, value_clip, straight_through, whitened,
          group_normalised]


def line(what, values, form="%.17g"):
    print(what, " ".join(form % v for v in values))


def main():
    for lengths, groups in [([3, 7, 1, 5, 6], [0, 0, 1, 1, 2]), ([9, 2, 4, 8], [0, 0, 0, 0])]:
        b = Batch(lengths, groups)
        line(f"batch {len(lengths)}", lengths, "%d")
        line("group", groups, "%d")
        line("mask", b.flat_mask, "%d")
        for name, x in b.columns.items():
            line(name, x.tolist(), "%.9g")
        line("advantage", b.advantage.tolist(), "%.9g")
        line(f"losses {len(LOSSES)}", [])
        for loss in LOSSES:
            fresh = {n: b.get(n).requires_grad_() for n in ("logprob", "entropy", "value")}
            value = loss(b, fresh)
            value.backward()
            line(loss.__name__, [value.item()])
            for n, x in fresh.items():
                g = torch.zeros_like(x) if x.grad is None else x.grad * b.m
                line(n, torch.cat([g[i, :k] for i, k in enumerate(lengths)]).tolist())


main()
