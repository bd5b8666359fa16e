#!/usr/bin/env python3
"""Predictions of runs that a hardware file was not refined with, beside what they took: one device, twelve configurations.

    tests/bench/gpu/refine.py --graphrun build/tools/graphrun --out DIR [--hardware NAME|FILE]

The machine is measured first (`graphrun calibrate`; with --hardware that file or profile is taken instead). Then each
configuration runs, four iterations of which three count, planned with that file. They are two halves of six, of small, middle and large models
each. A half
refines the file (`graphrun calibrate --from`) for the other, so that each of the twelve is predicted twice: before, and by a file
refined with runs none of which is it. Memory is not limited unless a configuration says so.

A table has predicted over measured seconds of the iteration and of each node that takes 5 % of it or more, before and after;
the bars are 5 % and 8 %. `another plan`: the refined file makes a plan of other steps than the one that ran. Then, of each configuration, the kinds of
steps whose time the refined file misses by most: predicted and measured ms an iteration. DIR/results.jsonl has all of that.

--tiny takes models and batches that a CPU runs in a minute, to try the script.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import common

# (half, name, graph, model, bf16 state, settings, options)
CONFIGURATIONS = [
    (0, "0.6B", "grpo", "0.6B", True, {}, {}),
    (0, "1.7B fp32 state, reference", "reference", "1.7B", False, dict(response_tokens=256), {}),
    (0, "8B", "grpo", "8B", True, {}, {}),
    (1, "0.6B fp32 state, critic, 60 %", "critic", "0.6B", False, {}, dict(budget=60)),
    (0, "1B-A0.3B, 16 x 8", "grpo", "1B-A0.3B", True, dict(prompts=16), {}),
    (0, "1.7B adapters of rank 32", "lora", "1.7B", False, {}, {}),
    (1, "1.7B, 4 x 4 of 128 + 64", "grpo", "1.7B", True, dict(prompts=4, samples=4, response_tokens=64), {}),
    (1, "4B, reference, 8 x 8 of 256 + 256", "reference", "4B", True, dict(prompt_tokens=256, response_tokens=256), {}),
    (1, "8B fp32 state, 75 %", "grpo", "8B", False, {}, dict(budget=75)),
    (0, "2B-hybrid", "grpo", "2B-hybrid", True, {}, {}),
    (1, "1B-A0.3B fp32 state, critic", "critic", "1B-A0.3B", False, {}, {}),
    (1, "1.7B rollout in FP8", "grpo", "1.7B", True, dict(rollout_in="fp8"), {}),
]
SIZE = dict(prompts=8, samples=8, prompt_tokens=128, response_tokens=128)
TINY = dict(prompts=2, samples=4, prompt_tokens=16, response_tokens=24)
WEIGHS = 0.05  # of an iteration: nodes that count
ITERATION, NODE = 0.05, 0.08  # bars


class Case:
    def __init__(self, a, spec):
        self.a = a
        self.half, self.name, graph, model, bf16, more, options = spec
        if a.tiny:
            model = {"1B-A0.3B": "tiny-experts", "2B-hybrid": "tiny-hybrid"}.get(model, "tiny")
            size = dict(TINY)
        else:
            size = dict(SIZE, **more)
        self.graph = os.path.join(HERE, graph + ".yaml")
        folder = os.path.join(a.out, "model-" + model)
        self.settings = dict(size, model=common.make_model(folder, model))
        if bf16 and a.device == "cuda":
            self.settings.update(grads="bf16", moments="bf16", master="none")
        if "rollout_in" in more:
            self.settings["rollout_in"] = more["rollout_in"]
        rows = size["prompts"] * size["samples"]
        if graph == "lora":
            for key in ("prompts", "samples"):
                self.settings.pop(key)
            self.settings["sequences"] = rows
            self.settings["data"] = common.write_rows(folder + "-rows.jsonl", 4 * rows, size["prompt_tokens"], size["response_tokens"])
        else:
            data = f"{folder}-{size['prompt_tokens']}.jsonl"
            self.settings["data"] = common.write_prompts(data, 64, size["prompt_tokens"])
        self.percent = options.get("budget")
        self.options = ["--device", a.device]

    def with_hardware(self, hardware):
        return [*self.options, "--hardware", hardware]

    def run(self, hardware):
        if self.percent:
            peak = common.plan(self.a.graphrun, self.graph, self.settings, self.with_hardware(hardware)).plan["peak_bytes"]
            self.options += ["--budget", str(peak * self.percent // 100)]
        out = os.path.join(self.a.runs or self.a.out, re.sub(r"[^A-Za-z0-9.]+", "-", self.name))
        options = ["--steps", "4", "--hardware", hardware, *self.options[2:]]
        if not self.a.runs:
            common.launch(self.a.graphrun, self.graph, out, self.a.device, self.settings, options, self.a.timeout)
        self.ran = common.Run(out)

    def predict(self, before, after):
        self.before, self.after = (common.plan(self.a.graphrun, self.graph, self.settings, self.with_hardware(h))
                                   for h in (before, after))

    def same_plan(self):
        """Whether the steps of the refined file's plan are those that ran."""
        def steps(p):
            return [(s["kind"], s["what"], s["bytes"]) for s in p.rank["steps"]]
        return steps(self.before) == steps(self.after)

    def ratios(self, plan):
        """Predicted over measured: of the iteration; of the nodes that count."""
        whole = self.ran.seconds()
        nodes = {n: plan.predicted(n) / self.ran.node_seconds(n) for n in self.ran.nodes()
                 if self.ran.node_seconds(n) >= WEIGHS * whole}
        return plan.plan["seconds"] / whole, nodes

    def kinds(self):
        """Of each kind of step, ms an iteration: predicted by the refined file, times as often as it ran; measured."""
        index = {s["what"]: s for s in self.after.rank["steps"] if s["kind"] != "loop"}
        measured = collections.defaultdict(list)
        times = collections.defaultdict(float)
        for i in self.ran.measured():
            took = collections.defaultdict(float)
            for e in self.ran.iterations[i]:
                kind = re.sub(r"\d+", "N", e["name"])
                took[kind] += e["dur"] * 1e-3
                if i == self.ran.measured()[-1] and e["name"] in index:
                    times[kind] += index[e["name"]]["seconds"] * 1e3
            for kind, ms in took.items():
                measured[kind].append(ms)
        return {k: (times[k], statistics.median(v)) for k, v in measured.items()}


def calibrate(a, hardware, out, runs):
    args = [a.graphrun, "calibrate", "-o", out]
    args += ["--hardware", hardware] if runs else ["--device", a.device]
    for r in runs:
        args += ["--from", r.ran.folder]
    done = subprocess.run(args, capture_output=True, text=True, timeout=a.timeout)
    said = done.stdout + done.stderr
    print(f"# {os.path.basename(out)}:\n" + said[max(said.find("  runs "), 0):], flush=True)
    if done.returncode:
        raise common.Failed(f"status {done.returncode}: {' '.join(args)}")
    return out


def cell(case, plan):
    whole, nodes = case.ratios(plan)
    return f"{whole:.2f} | {', '.join(f'{n} {v:.2f}' for n, v in nodes.items())}"


def kept(case, plan):
    whole, nodes = case.ratios(plan)
    return abs(whole - 1) <= ITERATION and all(abs(v - 1) <= NODE for v in nodes.values())


def table(cases):
    print("\n| configuration | measured s | before | its nodes | after | its nodes | |\n|---|---|---|---|---|---|---|")
    for c in cases:
        note = "kept" if kept(c, c.after) else "not kept"
        note += "" if c.same_plan() else ", another plan"
        print(f"| {c.name} | {c.ran.seconds():.3f} | {cell(c, c.before)} | {cell(c, c.after)} | {note} |")
    print(f"\nbefore {sum(kept(c, c.before) for c in cases)}, after {sum(kept(c, c.after) for c in cases)} of {len(cases)} kept\n")


def misses(cases, most=6):
    for c in cases:
        kinds = c.kinds()
        worst = sorted(kinds, key=lambda k: -abs(kinds[k][0] - kinds[k][1]))[:most]
        device = sum(c.ran.node_seconds(n) for n in c.ran.nodes())
        print(f"{c.name}: nodes {device * 1e3:.1f} of {c.ran.seconds() * 1e3:.1f} ms; " +
              ", ".join(f"{k} {kinds[k][0]:.2f} {kinds[k][1]:.2f}" for k in worst), flush=True)


def results(a, cases):
    with open(os.path.join(a.out, "results.jsonl"), "w") as f:
        for c in cases:
            line = dict(name=c.name, half=c.half, seconds=c.ran.seconds(), memory=c.ran.memory(), kinds=c.kinds(),
                        same_plan=c.same_plan())
            for name, plan in (("before", c.before), ("after", c.after)):
                whole, nodes = c.ratios(plan)
                line[name] = dict(iteration=whole, nodes=nodes)
            f.write(json.dumps(line) + "\n")


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--graphrun", default="build/tools/graphrun")
    p.add_argument("--out", default="refine")
    p.add_argument("--device", default="cuda")
    p.add_argument("--hardware", help="a profile or a file to begin with; default: this machine is measured")
    p.add_argument("--timeout", type=int, default=120, help="seconds that a run may take")
    p.add_argument("--runs", help="DIR of an earlier call: nothing runs, its runs are predicted again (with --hardware)")
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    begin, ran, failed = time.time(), [], 0
    hardware = a.hardware or calibrate(a, None, os.path.join(a.out, "measured.json"), [])
    for spec in CONFIGURATIONS:
        case = Case(a, spec)
        try:
            case.run(hardware)
            ran.append(case)
        except common.Failed as e:
            failed += 1
            print(f"{case.name}: failed: {e}")
        print(f"# {time.time() - begin:.0f} s: {case.name}", flush=True)
    files = [calibrate(a, hardware, os.path.join(a.out, f"refined{half}.json"), [c for c in ran if c.half == half])
             for half in (0, 1)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda c: c.predict(hardware, files[1 - c.half]), ran))
    print(f"# {time.time() - begin:.0f} s: predicted", flush=True)
    results(a, ran)
    misses(ran)
    table(ran)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
