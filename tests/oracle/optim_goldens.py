"""Steps of optimizers in float64: writes tests/golden/optim.txt.

    python tests/oracle/optim_goldens.py > tests/golden/optim.txt

AdamW and SGD are torch's. Lion is algorithm 2 of arXiv:2302.06675, written out: torch has none. Numbers of 7 weights after each
of 6 steps; gradients are sin(3 i + step) / 2, weights begin at cos(i), as tests/unit/ops/kernels/test_kernels.c has them.
"""
import math

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

for name, make in OPTIMIZERS.items():
    w = torch.tensor([math.cos(i) for i in range(N)], dtype=torch.float64, requires_grad=True)
    optimizer = make([w])
    for step in range(1, STEPS + 1):
        w.grad = gradient(step)
        optimizer.step()
        print(name, step, " ".join("%.12g" % x for x in w.tolist()))
