"""Divergences of a student's rows from a teacher's, in float64: writes tests/golden/teach.txt.

    pip install torch; pip install --no-deps trl==0.24.0
    python tests/oracle/teach_goldens.py > tests/golden/teach.txt

A line for each case: kind, beta, the caps of both logits (0: none), then of each of N rows its divergence, then of each row
d (sum of cos(row) divergence) / d logit by autograd. Logits and the temperature are those of tests/unit/ops/kernels/test_kernels.c.
The divergence has to equal TRL's generalized_jsd_loss.
"""
import ast
import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F

N, V, T = 5, 11, 0.8
i, j = torch.meshgrid(torch.arange(N, dtype=torch.float64), torch.arange(V, dtype=torch.float64), indexing="ij")


def function_of(path, name):
    tree = ast.parse(Path(path).read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name][0]
    found.decorator_list = []
    scope = {"torch": torch, "F": F}
    exec(compile(ast.Module([found], []), path, "exec"), scope)
    return scope[name]


trl = function_of(Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "trainer/gkd_trainer.py",
                  "generalized_jsd_loss")


def capped(z, cap):
    return cap * torch.tanh(z / cap) if cap else z


def kl(a, log_a, log_b):
    return (a * (log_a - log_b)).sum(-1)


def divergence(kind, beta, p, t):
    log_p, log_t = torch.log_softmax(p / T, -1), torch.log_softmax(t / T, -1)
    if kind == "forward_kl":
        return kl(log_t.exp(), log_t, log_p)
    if kind == "reverse_kl":
        return kl(log_p.exp(), log_p, log_t)
    log_m = (beta * log_t.exp() + (1 - beta) * log_p.exp()).log()
    return beta * kl(log_t.exp(), log_t, log_m) + (1 - beta) * kl(log_p.exp(), log_p, log_m)


for kind, beta in (("reverse_kl", 1), ("forward_kl", 0), ("jsd", 0.5), ("jsd", 0.1)):
    for caps in ((0, 0), (3, 4)):
        z = (3 * torch.sin(1.3 * i + 0.7 * j)).requires_grad_()
        taught = capped(3 * torch.cos(0.9 * i + 1.1 * j), caps[1])
        d = divergence(kind, beta, capped(z, caps[0]), taught)
        other = trl(capped(z, caps[0])[None], taught[None], beta=beta, temperature=T, reduction="none")
        assert torch.allclose(d, other[0].sum(-1), rtol=1e-10), (kind, beta)
        (torch.cos(i[:, 0]) * d).sum().backward()
        print(kind, beta, *caps, *("%.10g" % x for x in [*d.tolist(), *z.grad.flatten().tolist()]))
