"""Algorithms that verl's core_algos.py does not have, in float64: writes tests/golden/papers.txt.

    pip install torch; pip install --no-deps trl==0.24.0
    git clone https://github.com/verl-project/verl-recipe  # PRIME's own functions, at 48ea0a7
    python tests/oracle/paper_goldens.py verl-recipe/prime/prime_core_algos.py > tests/golden/papers.txt

Formulas are written out of the papers, on padded tensors, apart from the expressions in graphs/; sums that a paper writes over
pairs are loops over pairs here. Where TRL or verl's recipes have a function for one, it is called on the same numbers and has
to agree, for the groups that it is made for: pairs (TRL), equally many samples of a prompt (PRIME).
tests/unit/graphs/loader/test_catalogue.c draws the same batches and compares.
"""
import ast
import importlib.util
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from batches import BATCHES, Batch, number, put, put_rows, put_tokens


def function_of(path, name):
    """One method of a file, as a function: its module needs a training stack that the method does not."""
    tree = ast.parse(Path(path).read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name][0]
    found.returns, found.decorator_list = None, []
    for a in found.args.args:
        a.annotation = None
    scope = {"torch": torch, "F": F}
    exec(compile(ast.Module([found], []), path, "exec"), scope)
    return scope[name]


TRL = Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "trainer"
trl_kto = function_of(TRL / "kto_trainer.py", "kto_loss")
trl_cpo = function_of(TRL / "cpo_trainer.py", "cpo_loss")
trl_orpo = function_of(TRL / "orpo_trainer.py", "odds_ratio_loss")
recipe_rloo = function_of(sys.argv[1], "compute_rloo_advantage_return")
recipe_ce = function_of(sys.argv[1], "compute_ce_dpo_loss_rm")
HERE = SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x)


def close(a, b, tolerance=1e-10):
    assert torch.allclose(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance), (a, b)


def token_mean(b, x, mask=None):
    m = b.masks() if mask is None else b.masks() * mask
    return (x * m).sum() / m.sum().clamp(min=1)


def seq_sum(b, x):
    return (x * b.masks()).sum(1)


def seq_mean(b, x):
    return seq_sum(b, x) / b.masks().sum(1).clamp(min=1)


def members(b):
    return [[i for i, g in enumerate(b.groups) if g == k] for k in range(max(b.groups) + 1)]


def score(b):
    return torch.tensor(b.score)


def lengths(b):
    return torch.tensor([float(n) for n in b.lengths])


def advantage(b):
    return torch.tensor(b.advantage)[:, None].expand(b.rows(), max(b.lengths))


def by_row(b, x):
    return x[:, None].expand(b.rows(), max(b.lengths))


def put_loss(name, b, f):
    """The value, and the derivative by each log-prob."""
    logprob = b.tokens("logprob").requires_grad_()
    value = f(logprob)
    value.backward()
    grad = torch.zeros_like(logprob) if logprob.grad is None else logprob.grad
    put_tokens("loss." + name + " " + number(value.item()), b, grad)


def clipped(a, r, low, high):
    return -torch.minimum(a * r, a * r.clamp(1 - low, 1 + high))


# ---- advantages ----------------------------------------------------------------------------------------------------


def gae(b, rewards, values, lam):
    """Schulman et al. (2016), (16): sums over all tokens that follow and count, lambda a number a row, gamma 1."""
    out = torch.zeros(b.rows(), max(b.lengths))
    for i, mask in enumerate(b.mask):
        at = [t for t, m in enumerate(mask) if m]
        for n, t in enumerate(at):
            for k, u in enumerate(at[n:]):
                after = values[i, at[n + k + 1]] if n + k + 1 < len(at) else 0.0
                out[i, t] += lam[i] ** k * (rewards[i, u] + after - values[i, u])
    return out


def vapo(b, alpha=0.5):
    """VAPO: lambda = 1 - 1 / (alpha l) for the policy (section 4.2), 1 for the critic."""
    lam = [max(1 - 1 / (alpha * n), 0.0) for n in b.lengths]
    values, rewards = b.tokens("values"), b.last(b.score)
    put_tokens("vapo", b, gae(b, rewards, values, lam))
    put_tokens("vapo_returns", b, gae(b, rewards, values, [1.0] * b.rows()) + values)


def whiten(b, x):
    v = x[b.masks() != 0]
    if len(v) < 2 or (v == v[0]).all():
        return torch.zeros_like(x)
    return (x - v.mean()) / (v.var() + 1e-8).sqrt()


def prime(b, process=5.0, outcome=5.0, beta=0.05):
    """PRIME, (5) and algorithm 1: leave-one-out of the mean a step and of the outcome, returns summed without discount."""
    paid, mask = beta * (b.tokens("sampled") - b.tokens("ref")), b.masks()
    mean, reward = seq_mean(b, paid), score(b)
    total = torch.zeros(b.rows(), max(b.lengths))
    last = b.last([1.0] * b.rows())
    for rows in members(b):
        n = len(rows)
        for i in rows if n > 1 else []:
            others = [k for k in rows if k != i]
            # r_t - mean of others, as verl writes it: n / (n - 1) r_t - sum of means / (n - 1)
            total[i] += process * mask[i] * (n / (n - 1) * paid[i] - sum(mean[k] for k in rows) / (n - 1))
            total[i] += outcome * last[i] * (reward[i] - sum(reward[k] for k in others) / (n - 1))
    returns = total.flip(1).cumsum(1).flip(1)
    put_tokens("prime", b, whiten(b, returns))
    recipe_agrees(b, paid, returns, process, outcome)


def recipe_agrees(b, paid, returns, process, outcome):
    """One group at a time, where each row ends with a token that counts: where verl's recipe looks for its end."""
    config = SimpleNamespace(algorithm=SimpleNamespace(reward_dpo_coef=process, reward_gt_coef=outcome))
    whitening = types.ModuleType("f")
    whitening.masked_whiten = lambda x, m: x
    recipe_rloo.__globals__["verl_F"] = whitening
    for rows in members(b):
        if len(rows) < 2 or not all(any(b.mask[i]) and b.mask[i][-1] for i in rows):
            continue
        mask = b.masks()[rows]
        seen = (torch.arange(mask.shape[1])[None] < lengths(b)[rows][:, None]).long()
        batch = {"rm_scores": paid[rows], "acc": score(b)[rows].float(), "prompts": torch.zeros(len(rows), 1),
                 "attention_mask": torch.cat([torch.ones(len(rows), 1).long(), seen], 1)}
        got = recipe_rloo(SimpleNamespace(batch=batch), mask.long(), len(rows), config)[1]
        close(got * mask, (returns * b.masks())[rows], 1e-6)  # its outcomes are float32


def qae(b, share=0.4):
    """QAE: b_K = inf {x: F(x) >= K} of the group's rewards; divided by the deviation."""
    out, reward = torch.zeros(b.rows()), score(b)
    for rows in members(b):
        r = reward[rows]
        baseline = min(x for x in r.tolist() if (r <= x).double().mean() >= share - 1e-12)
        spread = r.std() if len(rows) > 1 else torch.tensor(0.0)
        out[rows] = (r - baseline) / (spread + 1e-6)
    put_rows("qae", b, by_row(b, out))


def gfpo(b, keep=2):
    """GFPO, algorithm 1: the `keep` shortest; mean and deviation (n - 1) among them; nothing for the others."""
    out, reward = torch.zeros(b.rows()), score(b)
    for rows in members(b):
        taken = sorted(rows, key=lambda i: (b.lengths[i], i))[:keep]
        r = reward[taken]
        spread = r.std() if len(taken) > 1 else torch.tensor(0.0)
        out[taken] = (r - r.mean()) / (spread + 1e-6)
    put_rows("gfpo", b, by_row(b, out))


def spo(b, prior=8.0):
    """SPO, (3) and (6): r - alpha / (alpha + beta), normalized over the batch; alpha and beta from the prompt's earlier counts,
    which are 2 + greedy and 3 - greedy here, and a prior of prior / 2 each."""
    right = torch.tensor([2 + b.greedy[g] for g in b.groups])
    wrong = torch.tensor([3 - b.greedy[g] for g in b.groups])
    surprise = score(b) - (right + prior / 2) / (right + wrong + prior)
    spread = surprise.std() if b.rows() > 1 else torch.tensor(0.0)
    put_rows("spo", b, by_row(b, (surprise - surprise.mean()) / (spread + 1e-6)))


def curriculum(b, level=0.3, width=0.5):
    """GRPO's advantage, a group of one keeping its reward, weighed by exp(-((d - T) / width)^2); d is greedy here."""
    out, reward = torch.zeros(b.rows()), score(b)
    for k, rows in enumerate(members(b)):
        one = len(rows) == 1
        a = (reward[rows] - (0.0 if one else reward[rows].mean())) / ((1.0 if one else reward[rows].std()) + 1e-6)
        out[rows] = a * torch.exp(torch.tensor(-(((b.greedy[k] - level) / width) ** 2)))
    put_rows("curriculum", b, by_row(b, out))


def length_control(b, price=0.05, longest=7.0):
    """ALP, (2): the reward less a price times the group's solve rate, at least 1 / K, times N / N_max; then GRPO's
    advantage, in which a group of one keeps its reward."""
    reward, n = score(b), lengths(b)
    paid, out = torch.zeros(b.rows()), torch.zeros(b.rows())
    for rows in members(b):
        solved = max(reward[rows].mean().item(), 1 / len(rows))
        paid[rows] = reward[rows] - price * solved * n[rows] / longest
        one = len(rows) == 1
        spread = 1.0 if one else paid[rows].std()
        out[rows] = (paid[rows] - (0.0 if one else paid[rows].mean())) / (spread + 1e-6)
    put_rows("length_control", b, by_row(b, out))


# ---- losses --------------------------------------------------------------------------------------------------------


def vapo_loss(b, lp):
    """(8): the clipped loss over all tokens, and mu times the mean over the tokens of right responses."""
    r = (lp - b.tokens("old")).clamp(-20, 20).exp()
    right = by_row(b, (score(b) > 0).double())
    return token_mean(b, clipped(b.tokens("returns"), r, 0.2, 0.28)) - 0.1 * token_mean(b, lp, right)


def prime_loss(b, lp):
    """Cross entropy of sigmoid(beta sum log(prm / ref)) and the outcome."""
    logit = 0.05 * seq_sum(b, lp - b.tokens("ref"))
    q, reward = torch.sigmoid(logit), score(b)
    loss = -(reward * q.log() + (1 - reward) * (1 - q).log()).mean()
    if reward.min() >= 0 and reward.max() <= 1:
        close(loss, recipe_ce(lp - b.tokens("ref"), reward, b.masks(), 0.05))
    return loss


def gspo_token(b, lp):
    """(13), (14): s = sg[s_i] pi / sg[pi], an advantage a token, means over a response and over responses."""
    s = seq_mean(b, lp - b.tokens("old")).exp().detach()[:, None] * (lp - lp.detach()).exp()
    return seq_mean(b, clipped(b.tokens("returns"), s, 0.2, 0.28)).mean()


def margins(b, value):
    """The first of a group less all others of it: pairs, where it has two."""
    return [(value[rows[0]], sum(value[i] for i in rows[1:])) for rows in members(b)]


def pairs(b):
    return all(len(rows) == 2 for rows in members(b))


def simpo(b, lp):
    """(6), beta 2 and gamma 1."""
    chosen, rejected = zip(*margins(b, seq_mean(b, lp)))
    loss = -sum(F.logsigmoid(2.0 * (w - l) - 1.0) for w, l in zip(chosen, rejected)) / len(chosen)
    me = SimpleNamespace(alpha=0.0, accelerator=HERE, loss_type="simpo", simpo_gamma=1.0, beta=2.0, label_smoothing=0.0)
    rejected = torch.stack([torch.as_tensor(x) + 0 * chosen[0] for x in rejected])
    close(loss, trl_cpo(me, torch.stack(chosen), rejected)[0].mean())
    return loss


def ipo(b, lp):
    """(17): (h - 1 / (2 tau))^2."""
    h = margins(b, seq_sum(b, lp - b.tokens("ref")))
    return sum((w - l - 1 / (2 * 0.1)) ** 2 for w, l in h) / len(h)


def orpo(b, lp):
    """(6), (7): the chosen responses' loss, and lambda log sigmoid of the log odds ratio."""
    p = seq_mean(b, lp).clamp(max=-1e-6)
    odds = [w - l for w, l in margins(b, p - torch.log1p(-p.exp()))]
    first = [rows[0] for rows in members(b)]
    chosen = by_row(b, torch.tensor([1.0 if i in first else 0.0 for i in range(b.rows())]))
    ratio = sum(F.logsigmoid(x) for x in odds) / len(odds)
    if pairs(b):
        first, second = p[0::2], p[1::2]
        close(0.1 * ratio, trl_orpo(SimpleNamespace(beta=0.1, accelerator=HERE), first, second)[0].mean())
    return -token_mean(b, lp, chosen) - 0.1 * ratio


def kto(b, lp):
    """(7) and (8), z_0 from log-ratios of other pairs; weights 1 and 1.3."""
    other = seq_sum(b, b.tokens("old") - b.tokens("sampled"))
    z = max(other.mean().item(), 0.0)
    gain = seq_sum(b, lp - b.tokens("ref"))
    good = torch.tensor([b.greedy[g] > 0.5 for g in b.groups])
    loss = torch.where(good, 1 - torch.sigmoid(0.1 * (gain - z)), 1.3 * (1 - torch.sigmoid(0.1 * (z - gain)))).mean()
    me = SimpleNamespace(calculate_KL=True, accelerator=HERE, loss_type="kto", beta=0.1, desirable_weight=1.0,
                         undesirable_weight=1.3)
    zero = torch.zeros_like(gain)
    close(loss, trl_kto(me, gain[good], gain[~good], other, zero[good], zero[~good], zero)[0].mean())
    return loss


def opmd(b, lp, tau=0.1):
    """Kimi k1.5, the gradient below (3): (r - mean r) grad log pi - tau / 2 grad (log pi / pi_i)^2."""
    reward, total = score(b), 0.0
    for rows in members(b):
        for i in rows:
            moved = seq_sum(b, lp - b.tokens("old"))[i]
            total = total + (reward[i] - reward[rows].mean()) * seq_sum(b, lp)[i] - tau / 2 * moved**2
    return -total / b.rows()


def forking(b, lp):
    """(7): of the batch's tokens the fifth of highest entropy; the divisor is all tokens."""
    entropy, m = -b.tokens("old"), b.masks() != 0
    chosen = (entropy >= torch.quantile(entropy[m], 0.8)).double()
    r = (lp - b.tokens("old")).exp()
    return token_mean(b, chosen * clipped(advantage(b), r, 0.2, 0.28))


def distill(b, lp):
    """The reverse KL of each token as its price: pi_teacher / pi_old, no discount."""
    a = b.tokens("ref") - b.tokens("old")
    return token_mean(b, clipped(a, (lp - b.tokens("old")).clamp(-20, 20).exp(), 0.2, 0.2))


def luffy(b, lp, gamma=0.1):
    """(6) and (8): of a group's responses but the first, which stand for demonstrations, p / (p + gamma) of each token, their
    author's probability taken as 1; of the others the clipped ratio. The divisor is all tokens of both."""
    a, p, total = advantage(b), lp.exp(), 0.0
    own = clipped(a, (lp - b.tokens("old")).exp(), 0.2, 0.2)
    for i in range(b.rows()):
        shown = i > 0 and b.groups[i] == b.groups[i - 1]
        of_row = -a[i] * p[i] / (p[i] + gamma) if shown else own[i]
        total = total + (of_row * b.masks()[i]).sum()
    return total / b.masks().sum().clamp(min=1)


def topr(b, lp):
    """(6): whole weights of what is better than the baseline, pi / mu cut to [0, 1] of what is worse; mu is what was sampled."""
    better = torch.tensor([b.greedy[g] - 0.5 for g in b.groups])
    ratio = seq_sum(b, lp - b.tokens("sampled")).exp().detach().clamp(0, 1)
    return -(torch.where(better >= 0, torch.ones_like(ratio), ratio) * better * seq_sum(b, lp)).mean()


LOSSES = {"vapo": vapo_loss, "prime": prime_loss, "gspo_token": gspo_token, "simpo": simpo, "ipo": ipo, "orpo": orpo, "kto": kto,
          "opmd": opmd, "forking": forking, "distill": distill, "luffy": luffy,
          "raft": lambda b, lp: -token_mean(b, lp), "rest_em": lambda b, lp: -seq_mean(b, lp).mean(), "topr": topr}


def main():
    print(f"torch {torch.__version__} trl 0.24.0 batches {BATCHES}")
    for i in range(BATCHES):
        b = Batch(i)
        print("batch", i, b.rows(), sum(b.lengths), number(sum(b.columns["returns"])))
        for estimator in (vapo, prime, qae, gfpo, spo, curriculum, length_control):
            estimator(b)
        for name, f in LOSSES.items():
            put_loss(name, b, lambda lp: f(b, lp))


main()
