"""Train the quickstart from Python, with a reward in Python, and plot it: tools/quickstart.sh has made its data and model.

    pip install ./python matplotlib && python graphs/programs/train.py
"""
import graphrun


def right_or_near(batch):
    """1 for the right answer, and a tenth for a wrong one with as many digits."""
    return [1.0 if is_ == wanted else 0.1 * (len(is_) == len(wanted)) for is_, wanted in zip(batch.responses, batch.answers)]


graph = {
    "graph": "train_py",
    "use": "graphs/quickstart.yaml",
    "nodes": {"reward": {"rule": None, "function": right_or_near}},
}

print(graphrun.plan(graph))

spread = []  # of the advantages, looked at where they lie
rewards = []
watch = {"advantage": lambda seen: spread.append(float(seen.columns["advantage"].std()))}
with graphrun.run(graph, watch=watch, steps=150) as run:
    for iteration in run:
        rewards.append(iteration["reward_mean"])
        if iteration.step % 10 == 0:
            print(f"step {iteration.step}: reward {iteration['reward_mean']:.3f}, spread {spread[-1]:.2f}")
        if sum(rewards[-5:]) > 5 * 0.8:
            run.stop()  # with a checkpoint
print(f"results are in {run.out}")

import matplotlib.pyplot as plt  # noqa: E402

plt.plot(range(1, len(rewards) + 1), rewards, label="reward")
plt.plot(range(1, len(spread) + 1), spread, label="spread of advantages")
plt.xlabel("iteration")
plt.legend()
plt.savefig(f"{run.out}/reward.png")
