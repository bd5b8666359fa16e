"""Steps of optimizers in float64: writes tests/golden/optim.txt, and with an argument tests/golden/muon.txt.

    python tests/oracle/optim_goldens.py > tests/golden/optim.txt
    python tests/oracle/optim_goldens.py muon > tests/golden/muon.txt

Muon's iteration is written out in float64, and torch.optim.Muon (2.9 and later), which makes it in bf16, has to be within that
type's rounding of it. A line for each of two shapes and of STEPS steps: rows, cols, the matrix; gradients are
sin(0.7 i^2 + step) / 2, which has full rank.

AdamW and SGD are torch's. Lion is algorithm 2 of arXiv:2302.06675, written out: torch has none. Numbers of 7 weights after each
of 6 steps; gradients are sin(3 i + step) / 2, weights begin at cos(i), as tests/unit/ops/kernels/test_kernels.c has them.
"""
import math
import sys

import torch

N, STEPS = 7, 6


def gradient(step):
    return torch.tensor([math.sin(3 * i + step) / 2 for i in range(N)], dtype=torch.float64)


class Lion:
    def __init__(self, params, lr, betas, weight_decay):
        self.p, self.lr, self.betas, self.decay = params[0], lr, betas, weight_decay
        self.m = torch.zeros_like(self.p)

    @torch.no_grad()
    def step(self):
        g, (b1, b2) = self.p.grad, self.betas
        update = torch.sign(b1 * self.m + (1 - b1) * g)
        self.p -= self.lr * (update + self.decay * self.p)
        self.m = b2 * self.m + (1 - b2) * g


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1),
    "lion": lambda p: Lion(p, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=0.1),
}

def orthogonal(x):
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        s = x @ x.T
        x = 3.4445 * x + (-4.775 * s + 2.0315 * s @ s) @ x
    return x


def muon(rows, cols, steps, lr=0.02, mu=0.95, decay=0.1):
    n = rows * cols
    w = torch.tensor([math.cos(i) for i in range(n)], dtype=torch.float64).reshape(rows, cols)
    theirs = w.clone().requires_grad_()
    optimizer = torch.optim.Muon([theirs], lr=lr, momentum=mu, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    m = torch.zeros_like(w)
    for step in range(1, steps + 1):
        g = torch.tensor([math.sin(0.7 * i * i + step) / 2 for i in range(n)], dtype=torch.float64).reshape(rows, cols)
        m = m + (1 - mu) * (g - m)
        o = orthogonal(g + mu * (m - g)) if rows <= cols else orthogonal((g + mu * (m - g)).T).T
        w = w * (1 - lr * decay) - lr * 0.2 * math.sqrt(max(rows, cols)) * o
        theirs.grad = g
        optimizer.step()
        assert (theirs - w).abs().max() < 0.1 * lr, (theirs - w).abs().max()
        print(rows, cols, " ".join("%.10g" % x for x in w.flatten().tolist()))


if len(sys.argv) > 1:
    muon(3, 7, 3)
    muon(6, 4, 3)
    sys.exit()

for name, make in OPTIMIZERS.items():
    w = torch.tensor([math.cos(i) for i in range(N)], dtype=torch.float64, requires_grad=True)
    optimizer = make([w])
    for step in range(1, STEPS + 1):
        w.grad = gradient(step)
        optimizer.step()
        print(name, step, " ".join("%.12g" % x for x in w.tolist()))
