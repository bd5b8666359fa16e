"""PF-PPO's weights and draws by verl's own function: writes tests/golden/pf_ppo.txt.

    pip install --no-deps verl==0.9.1      # it is read, not imported: torch and numpy are all that it takes
    python tests/oracle/pf_ppo_goldens.py [.../verl/trainer/ppo/core_algos.py] > tests/golden/pf_ppo.txt

For each batch of scores, a line `scores`; then for each form (`pow` with a power, `max_min`, `max_random`) a line with the
weights that compute_pf_ppo_reweight_data hands to torch.multinomial, in float32 as it has them, and a line `drawn` with how
often each row is in what it returns, over so many calls. tests/unit/ops/test_resample.c has graphs/pf_ppo.yaml give the weights
of the same scores, and draws by them: the weights must be the same, the draws of the same distribution.
"""
import ast
import importlib.util
import pathlib
import sys
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import torch

CALLS = 400
FORMS = [("pow", 2.0), ("pow", 1.5), ("max_min", 2.0), ("max_random", 2.0)]


class Recording:
    """torch, whose multinomial remembers its weights."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def multinomial(self, weights, *args, **more):
        self.weights = weights
        return torch.multinomial(weights, *args, **more)


class Columns(dict):
    batch_size = None


def verls_function(path, recording):
    tree = ast.parse(pathlib.Path(path).read_text())
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "compute_pf_ppo_reweight_data"]
    scope = {"torch": recording, "np": np, "deepcopy": deepcopy}
    exec(compile(ast.Module(body=found, type_ignores=[]), str(path), "exec"), scope)
    return scope["compute_pf_ppo_reweight_data"]


def batch_of(scores):
    """Scores on the last of three tokens; the numbers of rows, to see which were drawn."""
    levels = torch.zeros(len(scores), 3)
    levels[:, 2] = torch.tensor(scores)
    columns = Columns(token_level_scores=levels, row=torch.arange(len(scores)))
    return SimpleNamespace(batch=columns, non_tensor_batch={"row": np.arange(len(scores))}, meta_info={})


def numbers(values):
    return " ".join("%.9g" % v for v in values)


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else importlib.util.find_spec("verl").submodule_search_locations[0] + "/trainer/ppo/core_algos.py"
    recording = Recording()
    reweight = verls_function(path, recording)
    torch.manual_seed(5)
    batches = [[0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0.0] * 4, [1.0] * 4, [0.75], [-1.0, 0.5, 0.25, 0.5, -0.25, 0.0]]
    batches += [torch.randn(n).tolist() for n in (5, 12, 32)]
    print(f"torch {torch.__version__} calls {CALLS}")
    for scores in batches:
        print("scores", numbers(scores))
        for form, power in FORMS:
            counts = torch.zeros(len(scores), dtype=torch.long)
            for _ in range(CALLS):
                drawn = reweight(batch_of(scores), form, power)
                assert (drawn.batch["row"].numpy() == drawn.non_tensor_batch["row"]).all()
                counts += torch.bincount(drawn.batch["row"], minlength=len(scores))
            print(form if form != "pow" else f"pow{power:g}", numbers(recording.weights))
            print("drawn", numbers(counts))


main()
