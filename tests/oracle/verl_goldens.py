"""verl's own estimators, policy losses and rollout correction in float64: writes tests/golden/verl.txt.

    pip install --no-deps verl==0.9.1      # and what it imports: torch, numpy, ray, tensordict, omegaconf, ...
    python tests/oracle/verl_goldens.py > tests/golden/verl.txt

tests/unit/graphs/loader/test_catalogue.c makes the same batches from the same seeds and runs the expressions of graphs/*.yaml on them.
Only results are written: for each row that has a token, or each token whose mask is 1, in order. What verl computes in
float32 inside (grpo_vectorized, gdpo) runs in float64 here, through a torch whose float32 is float64. Where verl raises or
divides by nothing, the case is left out or cut down, as the comments say; docs/ALGORITHMS.md has what graphrun does there.
"""
from types import SimpleNamespace

import numpy as np
import torch

from batches import BATCHES, Batch, put, put_rows, put_tokens
import verl.trainer.ppo.core_algos as core
import verl.trainer.ppo.rollout_corr_helper as helper
import verl.utils.groupwise as groupwise
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

class Doubles:
    """A module in which float32 means float64."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, "float64" if name == "float32" else name)


core.torch = groupwise.torch = Doubles(torch)
core.np = Doubles(np)
helper.compute_is_metrics = lambda **_: {}  # numbers for logs, which divide by 0 where no weight is left


# ---- estimators ----------------------------------------------------------------------------------------------------


def outcome(b, name, **more):
    f = core.get_adv_estimator_fn(name)
    return f(token_level_rewards=b.first(b.score), response_mask=b.masks(), index=b.index(), **more)[0]


def whitened(b, matrix):
    """verl divides a sum by the count + 1e-8; where all values are equal, the whitening makes x * 1e-4 / count of that."""
    values = matrix[b.masks() != 0]
    flat = (values == values[0]).all() and values[0].abs() < 1e-4
    return torch.zeros_like(matrix) if flat else matrix


def passk(b):
    """verl raises for groups of one: they are left out, and have no advantage."""
    out = torch.zeros(b.rows(), max(b.lengths))
    keep = [i for i, g in enumerate(b.groups) if b.groups.count(g) > 1]
    if keep:
        rewards, mask = b.first(b.score)[keep], b.masks()[keep]
        out[keep] = core.compute_grpo_passk_outcome_advantage(rewards, mask, b.index()[keep], config={})[0]
    return out


def gdpo(b):
    mask = b.masks()
    attention = torch.ones(b.rows(), 1 + max(b.lengths), dtype=torch.long)
    batch = {"prompts": torch.zeros(b.rows(), 1), "attention_mask": attention}
    scores = {"correct": np.array(b.score), "form": np.array(b.written)}
    config = {"gdpo_reward_keys": ["correct", "form"], "gdpo_reward_weights": [1.0, 0.5]}
    return core.compute_gdpo_outcome_advantage(
        b.first(b.score), mask, b.index(), config=config, non_tensor_batch=scores, batch=batch)[0]


def estimators(b):
    mask, old, ref = b.masks(), b.tokens("old"), b.tokens("ref")
    put_rows("grpo", b, outcome(b, "grpo"))
    put_rows("dr_grpo", b, outcome(b, "grpo", norm_adv_by_std_in_grpo=False))
    put_rows("grpo_vectorized", b, outcome(b, "grpo_vectorized"))
    put_rows("grpo_passk", b, passk(b))
    put_rows("rloo", b, outcome(b, "rloo"))
    put_rows("rloo_vectorized", b, outcome(b, "rloo_vectorized"))
    put_rows("gpg", b, outcome(b, "gpg"))
    put_rows("opo", b, outcome(b, "opo"))
    put_rows("reinforce_plus_plus_baseline", b, whitened(b, outcome(b, "reinforce_plus_plus_baseline")))
    put_rows("gdpo", b, whitened(b, gdpo(b)))
    rewards = b.last(b.score) - 0.05 * core.kl_penalty(old, ref, "kl") * mask
    config = SimpleNamespace(gamma=0.9)
    put_tokens("reinforce_plus_plus", b, core.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config)[0])
    current = core.verl_F.masked_mean(core.kl_penalty(old, ref, "kl"), mask, axis=-1).mean().item()
    controller = core.AdaptiveKLController(0.05, 0.1, 100)
    controller.update(current, b.rows())
    put("adaptive_kl", [current, controller.value])
    greedy = torch.tensor([b.greedy[g] for g in b.groups])
    put_tokens("remax", b, core.compute_remax_outcome_advantage(b.last(b.score), greedy, mask)[0])
    config = (b.last(b.score), mask, b.index(), old, b.tokens("sum_p2"))
    if not b.turns:  # with masked columns in between, verl's zero tail mixes columns with numbers of tokens
        put_tokens("optimal_token_baseline", b, core.compute_optimal_token_baseline_advantage(*config)[0])
    put_tokens("tir_optimal_token_baseline", b, core.compute_multi_turn_optimal_token_baseline_advantage(*config)[0])
    values = b.tokens("values")
    advantages, returns = core.compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8)
    put_tokens("gae", b, advantages)
    put_tokens("gae_returns", b, returns)


# ---- losses --------------------------------------------------------------------------------------------------------


def config_of(b, low=0.2, high=0.28, c=1e9, kept=None, scale=None, **policy):
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, ppo_mini_batch_size=1, clip_ratio=0.2,
        clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=c, policy_loss=PolicyLossConfig(**policy))
    mask = b.masks() if kept is None else kept
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=mask.sum().item(), global_batch_size=b.rows(), loss_scale_factor=scale)
    return config


def put_loss(name, b, f):
    """The value, and the derivative by each log-prob."""
    logprob = b.tokens("logprob").requires_grad_()
    value = f(logprob)
    value.backward()
    put_tokens("loss." + name + " " + number(value.item()), b, logprob.grad)


def policy(b, name, mode, lp, config, old=None, mask=None, weights=None):
    f = core.get_policy_loss_fn(name)
    advantages = torch.tensor(b.advantage)[:, None].expand(b.rows(), max(b.lengths))
    mask = b.masks() if mask is None else mask
    old = b.tokens("old") if old is None else old
    return f(old_log_prob=old, log_prob=lp, advantages=advantages, response_mask=mask, loss_agg_mode=mode, config=config,
             rollout_is_weights=weights)[0]


def kl(b, lp, form):
    return core.agg_loss(core.kl_penalty(lp, b.tokens("ref"), form), b.masks(), "token-mean")


def losses(b):
    plain = ("dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "cispo", "geo_mean")
    mode = {"gspo": "seq-mean-token-mean"}
    put_loss("vanilla", b, lambda lp: policy(b, "vanilla", "token-mean", lp, config_of(b)))
    put_loss("vanilla-even", b, lambda lp: policy(b, "vanilla", "token-mean", lp, config_of(b, high=0.2)))
    put_loss("vanilla_kl", b, lambda lp: policy(b, "vanilla", "token-mean", lp, config_of(b, high=0.2))
             + 0.1 * kl(b, lp, "low_var_kl"))
    put_loss("dual_clip", b, lambda lp: policy(b, "vanilla", "token-mean", lp, config_of(b, c=3.0)))
    for how in ("token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"):
        put_loss(how, b, lambda lp: policy(b, "vanilla", how, lp, config_of(b, c=3.0, scale=7)))
    for name in plain:
        put_loss(name, b, lambda lp: policy(b, name, mode.get(name, "token-mean"), lp, config_of(b, c=20)))
    # As many are drawn as there are candidates, so that the draw decides nothing.
    drawn = dict(clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=5.0)
    put_loss("clip_cov", b, lambda lp: policy(b, "clip_cov", "token-mean", lp, config_of(b, **drawn)))
    put_loss("kl_cov", b, lambda lp: policy(b, "kl_cov", "token-mean", lp, config_of(b, kl_cov_ratio=0.3, ppo_kl_coef=0.1)))
    put_loss("dro", b, lambda lp: policy(b, "dro", "token-mean", lp, config_of(b, dro_beta=0.1)))
    for form in ("k1", "abs", "k2", "k3", "k1+", "k3+", "abs+"):
        put_loss(form, b, lambda lp: kl(b, lp, form))
    value = b.tokens("value").requires_grad_()
    loss = core.compute_value_loss(value, b.tokens("returns"), b.tokens("values"), b.masks(), 0.5, "token-mean")[0]
    loss.backward()
    put_tokens("loss.value " + number(loss.item()), b, value.grad)


# ---- rollout correction --------------------------------------------------------------------------------------------

REJECTIONS = {"token_k1": "0.8_1.1", "token_k2": 0.01, "token_k3": 0.01, "seq_sum_k1": "0.8_1.1", "seq_sum_k2": 0.02,
              "seq_sum_k3": 0.02, "seq_mean_k1": "0.9_1.1", "seq_mean_k2": 0.01, "seq_mean_k3": 0.01, "seq_max_k2": 0.02,
              "seq_max_k3": 0.02}
BOTH = ("seq_mean_k3,seq_max_k3", "0.03,0.2")


def correction(b):
    mask, gap, sampled = b.masks(), b.tokens("old") - b.tokens("sampled"), b.tokens("sampled")
    for level in ("token", "sequence"):
        for name, threshold, balanced in (("", 1.2, False), ("_icepop", "0.8_1.2", False), ("_balanced", 1.2, True)):
            weights = compute_rollout_correction_weights(gap, mask, level, threshold, balanced)[0]
            put_tokens(f"{level}_weight{name}", b, weights)
    for option, threshold in REJECTIONS.items():
        put_tokens(option, b, compute_rollout_rejection_mask(gap, mask, option, threshold)[0])
    kept = compute_rollout_rejection_mask(gap, mask, *BOTH)[0]
    weights = compute_rollout_correction_weights(gap, kept, "sequence", 1.2)[0]
    if kept.sum():  # verl divides by the number of tokens that are kept
        put_loss("rollout_correction", b, lambda lp: policy(
            b, "vanilla", "token-mean", lp, config_of(b, c=3.0, kept=kept), mask=kept, weights=weights))
    else:
        print("loss.rollout_correction 0")

    def bypass(lp, mode, how):
        return policy(b, "bypass_mode", mode, lp, config_of(b, c=3.0, rollout_correction=how, kept=passing), old=sampled)

    gap = b.tokens("logprob") - sampled
    clip = dict(loss_type="ppo_clip", rollout_rs="seq_mean_k3", rollout_rs_threshold=0.3)
    passing = compute_rollout_rejection_mask(gap, mask, "seq_mean_k3", 0.3)[0]
    if passing.sum():
        put_loss("bypass", b, lambda lp: bypass(lp, "token-mean", clip))
    else:
        print("loss.bypass 0")
    passing = mask
    weighted = dict(loss_type="reinforce", rollout_is="token", rollout_is_threshold=1.2)
    put_loss("bypass_reinforce", b, lambda lp: bypass(lp, "seq-mean-token-sum", weighted))


def main():
    import verl

    print(f"verl {verl.__version__} torch {torch.__version__} batches {BATCHES}")
    for i in range(BATCHES):
        b = Batch(i)
        print("batch", i, b.rows(), sum(b.lengths), number(sum(b.columns["returns"])))
        estimators(b)
        losses(b)
        correction(b)


main()
