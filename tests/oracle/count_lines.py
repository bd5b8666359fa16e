"""Lines of YAML of each algorithm beside those of verl: prints the table of docs/ALGORITHMS.md.

    python tests/oracle/count_lines.py            # verl==0.9.1 installed, as for verl_goldens.py; it is read, not imported

The rule. graphrun: the lines of the graph file that are not blank and not a comment; in brackets, with all of the files it
uses, which hold the models, the data and the rollout too. verl: the lines of the functions that are registered for the
algorithm, its estimator and its policy loss, and of those in the same file that only it calls, decorator and signature
included, without doc strings, comments and blank lines; what all algorithms share (the aggregation, the trainer, its
configuration) is not counted.
"""
import ast
import importlib.util
import pathlib
import sys

TABLE = [
    ("ppo", "PPO with a critic", ["compute_gae_advantage_return", "compute_policy_loss_vanilla", "compute_value_loss", "AdaptiveKLController"]),
    ("pf_ppo", "PF-PPO", ["compute_gae_advantage_return", "compute_policy_loss_vanilla", "compute_value_loss", "AdaptiveKLController", "compute_pf_ppo_reweight_data"]),
    ("grpo", "GRPO", ["compute_grpo_outcome_advantage", "compute_policy_loss_vanilla", "kl_penalty", "kl_penalty_forward"]),
    ("dr_grpo", "Dr. GRPO", ["compute_grpo_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("dapo", "DAPO", ["compute_grpo_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("prorl", "ProRL, a refreshed reference", None),
    ("gspo", "GSPO", ["compute_grpo_outcome_advantage", "compute_policy_loss_gspo"]),
    ("cispo", "CISPO", ["compute_grpo_outcome_advantage", "compute_policy_loss_cispo"]),
    ("rloo", "RLOO", ["compute_rloo_outcome_advantage", "compute_rloo_vectorized_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("remax", "ReMax", ["compute_remax_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("reinforce_plus_plus", "REINFORCE++", ["compute_reinforce_plus_plus_outcome_advantage", "compute_policy_loss_vanilla", "AdaptiveKLController"]),
    ("reinforce_plus_plus_baseline", "REINFORCE++ baseline", ["compute_reinforce_plus_plus_baseline_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("opo", "OPO", ["compute_opo_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("gpg", "GPG", ["compute_gpg_outcome_advantage", "compute_policy_loss_gpg"]),
    ("gdpo", "GDPO", ["compute_gdpo_outcome_advantage", "compute_grpo_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("grpo_passk", "Pass@k training", ["compute_grpo_passk_outcome_advantage", "compute_policy_loss_vanilla"]),
    ("optimal_token_baseline", "optimal token baseline", ["compute_optimal_token_baseline_advantage", "compute_policy_loss_vanilla"]),
    ("tir_optimal_token_baseline", "the same, with tools", ["compute_multi_turn_optimal_token_baseline_advantage", "compute_policy_loss_vanilla"]),
    ("egpo", "EGPO", None),
    ("sapo", "SAPO", ["compute_grpo_outcome_advantage", "compute_policy_loss_sapo"]),
    ("gmpo", "GMPO (geo_mean)", ["compute_grpo_outcome_advantage", "compute_policy_loss_geo_mean"]),
    ("clip_cov", "Clip-Cov", ["compute_grpo_outcome_advantage", "compute_policy_loss_clip_cov"]),
    ("kl_cov", "KL-Cov", ["compute_grpo_outcome_advantage", "compute_policy_loss_kl_cov"]),
    ("dppo_tv", "DPPO, total variation", ["compute_grpo_outcome_advantage", "compute_policy_loss_dppo_tv"]),
    ("dppo_kl", "DPPO, binary KL", ["compute_grpo_outcome_advantage", "compute_policy_loss_dppo_kl"]),
    ("dro", "DRO", ["compute_grpo_outcome_advantage", "compute_policy_loss_dro"]),
    ("rollout_correction", "rollout correction", ["compute_grpo_outcome_advantage", "compute_policy_loss_vanilla", "compute_rollout_rejection_mask", "compute_rollout_correction_weights", "_parse_rollout_is_threshold", "_parse_rollout_rs_thresholds", "compute_rollout_correction_and_rejection_mask"]),
    ("bypass", "bypass, PPO's clip", ["compute_grpo_outcome_advantage", "compute_policy_loss_bypass_mode", "compute_policy_loss_vanilla", "compute_rollout_rejection_mask", "_parse_rollout_rs_thresholds", "compute_rollout_correction_and_rejection_mask"]),
    ("bypass_reinforce", "bypass, REINFORCE", ["compute_grpo_outcome_advantage", "compute_policy_loss_bypass_mode", "compute_policy_loss_reinforce", "compute_rollout_correction_weights", "_parse_rollout_is_threshold", "compute_rollout_correction_and_rejection_mask"]),
    ("sft", "supervised fine-tuning", None),
    ("dpo", "DPO", None),
    ("online_dpo", "DPO, online", None),
    ("tr_dpo", "TR-DPO, a reference that follows", None),
    ("vapo", "VAPO", None),
    ("prime", "PRIME", None),
    ("gspo_token", "GSPO-token", None),
    ("qae", "QAE", None),
    ("gfpo", "GFPO", None),
    ("forking", "80/20, forking tokens", None),
    ("opmd", "OPMD (Kimi k1.5)", None),
    ("length_control", "length controller, ALP", None),
    ("spo", "SPO", None),
    ("curriculum", "curriculum, AdaRFT", None),
    ("raft", "RAFT", None),
    ("rest_em", "ReST-EM", None),
    ("distill", "on-policy distillation, by samples", None),
    ("luffy", "LUFFY, demonstrations beside rollouts", None),
    ("repo", "RePO, earlier responses beside new ones", None),
    ("rlep", "RLEP, right responses come again", None),
    ("opsd", "on-policy self-distillation (OPSD)", None),
    ("gkd", "GKD, on-policy distillation over the whole vocabulary", None),
    ("opsd_full", "OPSD, whole distributions", None),
    ("simpo", "SimPO", None),
    ("ipo", "IPO", None),
    ("orpo", "ORPO", None),
    ("topr", "TOPR, on rows that a run kept", None),
    ("kto", "KTO", None),
    ("crossroads", "crossroads (ours)", None),
]


def plain(lines):
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def used(path, seen):
    """The files that path uses, itself last."""
    if path in seen:
        return []
    seen.add(path)
    files = []
    for line in path.read_text().splitlines():
        if line.startswith("use:"):
            for name in line[4:].strip(" []").split(","):
                files += used((path.parent / name.strip()).resolve(), seen)
    return files + [path]


def lines_of(source, node):
    skip = set()
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(inner) is not None:
            skip.update(range(body[0].lineno, body[0].end_lineno + 1))
    first = min([node.lineno] + [d.lineno for d in node.decorator_list])
    return plain(source[i - 1] for i in range(first, node.end_lineno + 1) if i not in skip)


def verl_lines():
    root = pathlib.Path(importlib.util.find_spec("verl").origin).parent / "trainer/ppo"
    count = {}
    for name in ("core_algos.py", "rollout_corr_helper.py"):
        text = (root / name).read_text()
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                count[node.name] = lines_of(text.splitlines(), node)
    return count


def main():
    count = verl_lines()
    graphs = pathlib.Path(__file__).resolve().parents[2] / "graphs"
    print("| algorithm | graph file | lines | verl's |\n|---|---|---|---|")
    for name, title, functions in TABLE:
        path = graphs / (name + ".yaml")
        if not path.exists():
            print("no", path, file=sys.stderr)
            continue
        whole = sum(plain(f.read_text().splitlines()) for f in used(path.resolve(), set()))
        own = plain(path.read_text().splitlines())
        theirs = sum(count[f] for f in functions) if functions else "-"
        print(f"| {title} | `{name}.yaml` | {own} ({whole}) | {theirs} |")


main()
