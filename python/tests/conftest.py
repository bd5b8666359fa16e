"""What the tests share: a small graph on a random model, its data, and folders of their own."""
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def graph(tmp_path):
    """A function that makes a graph whose reward is `reward`."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"{i}+{2 * i}=", "answer": str(3 * i)}) + "\n" for i in range(16)))

    def make(reward=None, **reward_keys):
        if reward is not None:
            reward_keys["function"] = reward
        return {
            "graph": "small",
            "params": {"lr": 1e-3},
            "models": {"actor": {"checkpoint": ROOT / "graphs/quickstart/config.json", "train": {"lr": "$lr"}}},
            "state": {"bonus": {"init": 0.5, "next": "bonus"}},
            "nodes": {
                "prompts": {"op": "prompts", "file": data, "batch": 4, "max_tokens": 8, "template": "{question}"},
                "rollout": {"op": "generate", "model": "actor", "prompts": "prompts", "samples": 4, "max_tokens": 4},
                "reward": {"op": "reward", "of": "rollout", "answer": "prompts.answer", **reward_keys},
                "advantage": {"op": "compute", "expr": "reward - group_mean(reward)"},
                "update": {"op": "update", "model": "actor", "of": "rollout", "loss": "-token_mean(advantage * logprob)"},
            },
            "log": {"bonus": "bonus"},
            "run": {"steps": 3, "seed": 1},
        }

    return make
