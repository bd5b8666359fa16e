#!/usr/bin/env python3
"""Runs long enough to see what leaks, drifts or does not learn.

    tests/gpu/long_run.py --graphrun build/tools/graphrun [--device cuda] [--out DIR] [steady] [allocations] [quickstart] [arithmetic]

- steady: a random model of Qwen3-0.6B's shape, 100 iterations. The device's used memory must not grow by a byte after
  iteration 3, the process's resident memory by no more than 16 MiB after iteration 20, and the median time of the last
  30 iterations must be within 3 % of that of iterations 11 to 40.
- allocations: the same model with every call that takes or gives back the driver's memory in a list (--trace, a library
  built beside this): a run of 8 iterations makes exactly the calls of one of 2, so those after the second make none.
- quickstart: graphs/quickstart.yaml from the same warmed-up model on the device and on the CPU; the mean rewards of the
  last fifth must be within 0.05 of each other, and both above what they began with.
- arithmetic: the same of graphs/arithmetic.yaml, where --arithmetic DIR has the checkpoint and train.jsonl; the means of
  four seeds, of which each alone may end at 0.11 or at 0.23.

The CPU's side of the last two takes minutes: --cpu arithmetic=0.153 takes its last mean reward as given. The list of calls
needs libcupti.so.13, which is looked for beside CUDA and in Python's packages where LD_LIBRARY_PATH does not have it.

Prints a line a finding; status 1 where one is not as it should be.
"""
import argparse
import collections
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
GRPO = os.path.join(HERE, "..", "bench", "gpu", "grpo.yaml")
sys.path.insert(0, os.path.join(HERE, "..", "bench", "gpu"))
import common

failed = 0


def say(what, ok, text):
    global failed
    failed += not ok
    print(f"{what:52} {text}  {'OK' if ok else 'FAIL'}", flush=True)


def resident(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return None


def lines_of(path):
    try:
        with open(path) as f:
            return sum(1 for _ in f)
    except OSError:
        return 0


def watched(args, out):
    """Run args; the process's resident bytes by number of iterations that were done."""
    shutil.rmtree(out, ignore_errors=True)
    seen = {}
    with open(out + ".log", "w") as log:
        p = subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT)
        while p.poll() is None:
            bytes_now = resident(p.pid)
            if bytes_now:
                seen[lines_of(os.path.join(out, "metrics.jsonl"))] = bytes_now
            time.sleep(0.1)
    if p.returncode:
        with open(out + ".log") as log:
            raise common.Failed(" | ".join(log.read().strip().splitlines()[-6:]))
    return seen


def settings_of(a):
    size = dict(prompts=4, samples=8, prompt_tokens=64, response_tokens=96)
    data = common.write_prompts(os.path.join(a.out, "prompts.jsonl"), 64, size["prompt_tokens"])
    return dict(model=common.make_model(os.path.join(a.out, "model"), a.model), data=data, **size)


def steady(a):
    out = os.path.join(a.out, "steady")
    args = [a.graphrun, "exec", GRPO, "--device", a.device, "--out", out, "--steps", str(a.steps)]
    for key, value in settings_of(a).items():
        args += ["--set", f"{key}={value}"]
    seen = watched(args, out)
    run = common.Run(out)
    used = [m["measured_peak_bytes"] for m in run.metrics]
    slack = 0 if a.device == "cuda" else 1 << 20  # the CPU device counts pages of the process, what malloc keeps too
    say("steady: used device memory after iteration 3", used[-1] - used[2] <= slack, f"{used[2]} -> {used[-1]} bytes, "
        f"planned {run.plan['peak_bytes']}")
    early = [b for step, b in seen.items() if step >= 20]
    grown = early[-1] - early[0] if early else None
    say("steady: resident memory after iteration 20", grown is not None and grown <= 16 << 20, f"{grown} bytes more")
    seconds = [m["seconds"] for m in run.metrics]
    before, after = statistics.median(seconds[10:40]), statistics.median(seconds[-30:])
    say("steady: time of an iteration", abs(after / before - 1) <= 0.03,
        f"{before:.4f} s, at the end {after:.4f} s ({100 * (after / before - 1):+.1f} %)")
    say("steady: every iteration was trained", all(m["skipped_steps"] == 0 for m in run.metrics), f"{len(seconds)} iterations")


def library_path():
    """LD_LIBRARY_PATH with a folder that has CUPTI."""
    places = ["/usr/local/cuda*/extras/CUPTI/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib"]
    places += [os.path.join(p, "nvidia", "*", "lib") for p in sys.path]
    found = [os.path.dirname(f) for p in places for f in glob.glob(os.path.join(p, "libcupti.so.13"))]
    return ":".join([os.environ["LD_LIBRARY_PATH"]] * ("LD_LIBRARY_PATH" in os.environ) + found[:1])


def calls_of(a, steps):
    """How often each call that takes or gives back memory was made in a run of so many iterations."""
    listed = os.path.join(a.out, f"allocations-{steps}.txt")
    own = dict(CUDA_INJECTION64_PATH=os.path.abspath(a.trace), GR_ALLOC_TRACE=listed, LD_LIBRARY_PATH=library_path())
    common.execute(a.graphrun, GRPO, os.path.join(a.out, f"allocations-{steps}"), a.device, settings_of(a),
                   ["--steps", str(steps)], env=dict(os.environ, **own))
    with open(listed) as f:
        calls = [line.split(None, 1)[1] for line in f.read().splitlines()]
    if calls[0] != "trace":
        raise common.Failed(calls[0])
    return collections.Counter(calls[1:])


def allocations(a):
    if not os.path.exists(a.trace):
        raise common.Failed(f"{a.trace} is not there: a build with -Dcuda=enabled has it, where CUDA has cupti.h")
    few, many = calls_of(a, 2), calls_of(a, 8)
    more = {name: many[name] - few[name] for name in many | few if many[name] != few[name]}
    say("allocations: the arena was seen to be taken", few["cuMemCreate"] > 0, ", ".join(f"{v} {k}" for k, v in sorted(few.items())))
    say("allocations: more calls in 8 iterations than in 2", not more, str(more or "none"))


def rewards_of(path):
    with open(path) as f:
        return [json.loads(line)["reward_mean"] for line in f]


def last_reward(a, name, graph, device, settings):
    """Mean reward of the last fifth of a run's iterations."""
    out = os.path.join(a.out, f"{name}-{device}-{settings['run.seed']}")
    begin = time.time()
    run = common.execute(a.graphrun, os.path.join(ROOT, "graphs", graph), out, device, settings)
    rewards = rewards_of(os.path.join(run.folder, "metrics.jsonl"))
    fifth = len(rewards) // 5
    first, last = statistics.mean(rewards[:5]), statistics.mean(rewards[-fifth:])
    gap = max((m.get("logprob_gap_max") or 0) for m in run.metrics)
    print(f"{name}, {device}, seed {settings['run.seed']}: mean reward of the first 5 iterations {first:.3f}, of the last "
          f"{fifth} {last:.3f}; {time.time() - begin:.0f} s; largest gap of log-probs {gap:.4g}", flush=True)
    say(f"{name}, {device}: learns", last > first + 0.05, "")
    return last


def both_devices(a, name, graph, settings, seeds=1):
    """Last rewards on the CPU and on the device, as means over seeds: the seed says more than the device."""
    mean = {"cpu": a.cpu[name]} if name in a.cpu else {}
    for device in ("cpu", a.device):
        if device not in mean:
            mean[device] = statistics.mean(last_reward(a, name, graph, device, dict(settings, **{"run.seed": seed}))
                                           for seed in range(1, seeds + 1))
    say(f"{name}: rewards on both devices", abs(mean["cpu"] - mean[a.device]) <= 0.05,
        f"cpu {mean['cpu']:.3f}, {a.device} {mean[a.device]:.3f}")


def quickstart(a):
    """As tools/quickstart.sh: data, a random model, a warm-up on the CPU; then GRPO on either device."""
    folder = os.path.join(a.out, "quickstart")
    graphs = os.path.join(ROOT, "graphs")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)

    def graphrun(*args):
        subprocess.run([a.graphrun, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    subprocess.run([os.path.join(graphs, "quickstart", "data.sh"), folder], check=True)
    graphrun("init", "--config", os.path.join(graphs, "quickstart", "config.json"), "--tokenizer",
             os.path.join(graphs, "quickstart"), "--seed", "1", "-o", os.path.join(folder, "model"))
    graphrun("exec", os.path.join(graphs, "quickstart", "warmup.yaml"), "--device", "cpu", "--set",
             f"model={folder}/model", "--set", f"data={folder}/warmup.jsonl", "--out", os.path.join(folder, "warmup"))
    graphrun("export", os.path.join(folder, "warmup"), "-o", os.path.join(folder, "warm"))
    both_devices(a, "quickstart", "quickstart.yaml", {"model": f"{folder}/warm", "data": f"{folder}/train.jsonl",
                                                      "run.steps": a.quickstart_steps})


def arithmetic(a):
    if not a.arithmetic:
        print("arithmetic: no --arithmetic DIR: skipped")
        return
    data = next(p for p in (os.path.join(a.arithmetic, d, "train.jsonl") for d in ("", "data")) if os.path.exists(p))
    both_devices(a, "arithmetic", "arithmetic.yaml", {"model": a.arithmetic, "data": data}, a.seeds)


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("part", nargs="*", help="steady, allocations, quickstart, arithmetic; default: all")
    p.add_argument("--graphrun", default="build/tools/graphrun")
    p.add_argument("--device", default="cuda")
    p.add_argument("--trace", default="build/tests/gpu/alloc_trace.so")
    p.add_argument("--out", default="long-run")
    p.add_argument("--model", default="0.6B")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--quickstart-steps", type=int, default=500)
    p.add_argument("--arithmetic", metavar="DIR")
    p.add_argument("--seeds", type=int, default=4, help="runs of arithmetic on each device")
    p.add_argument("--cpu", metavar="PART=REWARD", action="append", default=[], help="the CPU's last mean reward, instead of its run")
    a = p.parse_args()
    a.cpu = {name: float(value) for name, value in (pair.split("=") for pair in a.cpu)}
    a.out = os.path.abspath(a.out)
    a.graphrun = os.path.abspath(a.graphrun)
    a.arithmetic = a.arithmetic and os.path.abspath(a.arithmetic)
    os.makedirs(a.out, exist_ok=True)
    parts = dict(steady=steady, allocations=allocations, quickstart=quickstart, arithmetic=arithmetic)
    for name in a.part or parts:
        try:
            parts[name](a)
        except Exception as e:  # the other parts are other matters
            say(name, False, f"{type(e).__name__}: {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
