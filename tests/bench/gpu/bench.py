#!/usr/bin/env python3
"""What one GPU does, beside PyTorch on the same GPU in the same run: a table of ours, theirs, ratio and the bar.

    tests/bench/gpu/bench.py --graphrun build/tools/graphrun --programs build/tests/bench --out DIR ROW...

A build with -Dcuda=enabled -Dbench=true has the programs; PyTorch and transformers are the python's that runs this. Rows:

    iteration:MODEL[:fp32][:key=value...]   a whole GRPO iteration, 32 prompts x 8 samples, 256 + 512 tokens: generate,
                                            log-prob pass, update, the whole, memory, what the plan had predicted. PyTorch
                                            does all of it for 0.6B; else it generates 64 tokens in the middle of each
                                            response and, of 8B, trains 64 sequences, scaled up to all
    strict:MODEL[:fp32][:key=value...]      our side of that iteration with `strict: true`, and what that costs beside the
                                            iteration as it is: of the same `iteration` row before it, or run first
    numerics:MODEL[:fp32][:key=value...]    the same, and then with `deterministic: false`
    lora:MODEL[:key=value...]               log-prob pass and update of adapters of rank 32 on all seven matrices of a layer, of
                                            sequences (64) of 256 + 512 tokens; 4 N an updated token, for weights have no
                                            gradients. 7B is Llama 2's shape, of which rates are published
    single:MODEL[:rollout_in=fp8]           one sequence, as a share of the copy bandwidth; of fp8, too, it counts the bytes of bf16
    plan:MODEL[:fp32][:key=value...]        only memory and prediction, of a smaller batch (8 x 8, 128 + 128 tokens)
    calibrate                               measures the machine; later rows plan with what it found (else --hardware)
    head, copies                            the fused head against its product; pinned copies
    offload:MODEL:fp32:budget=50%           the iteration's copies of training state under that part of what it would take

MODEL is 0.6B, 1.7B, 7B, 8B, 14B, 32B or, with experts, 30B-A3B, 8B-A1.3B (12 of its 48 layers) and 1B-A0.3B (Qwen3's shapes, random weights), gemma2-2B,
gemma3-1B, 2B-hybrid or 9B-hybrid. Without :fp32 gradients and moments are bf16 and there is no
master, as the PyTorch side has them. Keys are budget (bytes, max, or a percentage of the unlimited plan's peak), host-budget, disk (DIR@SIZE), policy, steps
(iterations of the run), and keys of the graph, such as rollout_in=fp8, kv_in=fp8, train_in=fp8 and share_prompts=8. PyTorch's side of an iteration is there for 0.6B, 1.7B and 8B. `--rows NAME` stands for a list: table (the published one, about nine minutes),
memory (twelve configurations, about three), families (twelve of three families, about two). Each row writes its lines to DIR/results.jsonl as it has them; a row that fails,
or takes longer than --timeout, is a line too, and the next goes on. After each row DIR/table.md holds the tables of all so
far: of what was measured; and of memory and predicted seconds, where the arena and all beside it are to be within 1 % of the
plan and never above, an iteration within 5 % of its prediction, a node that takes 5 % of it or more within 8 %. Of runs that
move state it also says the GiB copied an iteration, the share of that time under compute, and the seconds of copies alone.

N is the number of the parameters that a token goes through (all of them but in a model with experts), tokens are all tokens of a sequence; 6 N an updated token, 2 N one whose log-prob is
asked; the head runs on response positions. Iterations but the first count, by their median.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import common
import rows

# What a time limit would cost least is last.
LISTS = {
    "table": ["iteration:8B:steps=2", "iteration:0.6B", "copies", "head", "iteration:1.7B", "single:8B",
              "iteration:0.6B:fp32", "iteration:1.7B:fp32", "strict:8B:steps=2", "offload:1.7B:fp32:budget=50%",
              "numerics:0.6B", "strict:1.7B"],
    "memory": ["calibrate", "plan:0.6B", "plan:0.6B:fp32", "plan:0.6B:fp32:budget=60%", "plan:0.6B:fp32:budget=35%",
               "plan:0.6B:fp32:policy=every_node", "plan:1.7B", "plan:1.7B:fp32", "plan:1.7B:fp32:budget=50%", "plan:8B",
               "plan:8B:fp32:budget=max", "plan:8B:fp32:budget=100GiB", "plan:8B:fp32:budget=80GiB"],
    "families": ["calibrate", "plan:0.6B", "plan:0.6B:fp32:budget=60%", "plan:0.6B:prompts=4:samples=4:response_tokens=32",
                 "plan:1.7B", "plan:1.7B:fp32:budget=50%", "plan:1B-A0.3B", "plan:1B-A0.3B:fp32",
                 "plan:1B-A0.3B:fp32:budget=60%", "plan:gemma2-2B", "plan:gemma2-2B:budget=60%", "plan:gemma3-1B",
                 "plan:gemma3-1B:fp32:budget=60%"],
}

# row: (unit, at least, aim, whether less is better)
BARS = {
    "generate 0.6B": (40e3, 65e3), "generate 1.7B": (32e3, 50e3), "generate 8B": (18e3, 26e3),
    "one sequence 8B, share of copy bandwidth": (0.60, 0.80),
    "log-prob 8B": (580, 640), "log-prob 1.7B": (450, 520), "log-prob 0.6B": (330, 420),
    "update 8B": (470, 560), "update 1.7B": (380, 460), "update 0.6B": (270, 350),
    "head log-prob, share of the product": (0.85, 0.92),
    "host to device": (50, 54), "device to host": (50, 54), "load under a budget": (50, 54), "offload under a budget": (50, 54),
    "copies hidden": (None, 0.80),
    "iteration 0.6B": (6.6, 4.5),
    "update of adapters 7B": (529, 560), "update of adapters 7B, tokens": (17600, None),
}
COPY_GB_PER_SECOND = 4260  # where `copies` did not run before


class Bench:
    def __init__(self, a):
        self.a = a
        self.results = rows.Results(a.out, BARS, a.timeout)
        self.emit = self.results.emit
        self.iterations = {}  # runs of `iteration` rows, by what is behind the first colon
        self.peer = None if a.skip_theirs else rows.Peer(self.results, "torch_work.py")

    def theirs(self, *args):
        if self.peer:
            self.peer.work(*args)

    def program(self, name):
        self.results.program(os.path.join(self.a.programs, "bench_" + name))

    # ---- rows ----

    def settings(self, row, small=False):
        """A row's name as settings of its graph and options of graphrun."""
        model, *rest = row.split(":")[1:]
        a = self.a
        folder = os.path.join(a.out, "model-" + model)
        size = dict(prompts=8, samples=8, prompt_tokens=128, response_tokens=128) if small else \
            dict(prompts=a.prompts, samples=a.samples, prompt_tokens=a.prompt_tokens, response_tokens=a.response_tokens)
        if model == "tiny":
            size = dict(prompts=2, samples=4, prompt_tokens=16, response_tokens=24)
        s = dict(model=common.make_model(folder, model), **size)
        if "fp32" in rest:
            rest.remove("fp32")
            state = " fp32 state"
        else:
            s.update(grads="bf16", moments="bf16", master="none") if a.device == "cuda" else None
            state = ""
        steps, options, extra = str(a.steps), self.hardware(), []
        for pair in rest:
            key, value = pair.split("=", 1)
            if key == "steps":
                steps = value
                continue
            extra.append(pair)
            if key in ("budget", "host-budget", "policy"):
                options += ["--" + key, value]
            elif key == "disk":  # DIR@SIZE
                options += ["--disk", value.replace("@", ":")]
            else:
                s[key] = int(value) if value.isdigit() else value
        s["data"] = common.write_prompts(folder + ".jsonl", 4 * s["prompts"], s["prompt_tokens"])
        return model, model + state + "".join(" " + e for e in extra), s, ["--steps", steps, *options]

    def hardware(self):
        return ["--hardware", self.a.hardware] if self.a.hardware else []

    def budget_of(self, graph, s, options):
        """--budget 60% as bytes: of the peak that the plan has without one."""
        options = list(options)
        i = options.index("--budget") + 1 if "--budget" in options else 0
        if not i or not options[i].endswith("%"):
            return options
        plan = common.plan(self.a.graphrun, graph, s, ["--device", self.a.device, *self.hardware()])
        options[i] = str(int(plan.plan["peak_bytes"] * float(options[i][:-1]) / 100))
        return options

    def execute(self, row, graph, small=False, **more):
        model, label, s, options = self.settings(row, small)
        s.update(more)
        graph = os.path.join(HERE, graph)
        out = os.path.join(self.a.out, "-".join([row.replace(":", "-").replace("%", ""), *more]))
        run = common.execute(self.a.graphrun, graph, out, self.a.device, s, self.budget_of(graph, s, options),
                             self.a.timeout)
        return model, label, s, run

    def memory(self, label, run):
        self.results.memory(label, run)
        c = run.copying()
        if c:
            self.emit("copies hidden, both ways, " + label, c["hidden"], "", **c)

    def iteration(self, row):
        model, label, s, run = self.execute(row, "grpo.yaml")
        self.iterations[row.split(":", 1)[1]] = run
        n = common.active_of(common.config(model))
        sequences = s["prompts"] * s["samples"]
        tokens = sequences * (s["prompt_tokens"] + s["response_tokens"])
        if run.metrics[-1]["length"] != s["response_tokens"]:
            raise common.Failed(f"responses of {run.metrics[-1]['length']} tokens, not {s['response_tokens']}")
        node = {name: run.node_seconds(name) for name in run.nodes()}
        gap = run.metrics[-1]["gap"]
        self.emit("generate " + label, sequences * s["response_tokens"] / node["rollout"], "tok/s", seconds=node["rollout"],
                  params=n, gap_mean=gap)
        self.emit("log-prob " + label, 2 * n * tokens / node["old_logprob"] / 1e12, "TFLOP/s", seconds=node["old_logprob"],
                  tokens_per_second=tokens / node["old_logprob"])
        self.emit("update " + label, 6 * n * tokens / node["update"] / 1e12, "TFLOP/s", seconds=node["update"],
                  tokens_per_second=tokens / node["update"])
        self.emit("iteration " + label, run.seconds(), "s", all=[m["seconds"] for m in run.metrics], nodes=node)
        self.memory(label, run)
        state = "fp32" if "fp32 state" in label else "bf16"
        if model not in ("0.6B", "1.7B", "8B") or (state == "fp32" and model == "8B"):
            return  # weights, gradients and moments alone are 131 GB and more there
        part = [] if label == "0.6B" else ["--generate-tokens", min(64, s["response_tokens"] // 2)]
        if model == "8B":
            part += ["--train-sequences", min(64, sequences)]
        self.theirs("iteration", model, "--state", state, "--prompts", s["prompts"], "--samples", s["samples"],
                    "--prompt-tokens", s["prompt_tokens"], "--response-tokens", s["response_tokens"], "--micro",
                    8 if model == "8B" else 16, *part)

    def speeds(self, label, name, s, run):
        """Tokens a second of each part of an iteration; name is of the numerics it ran with."""
        answers = s["prompts"] * s["samples"] * s["response_tokens"]
        tokens = answers + s["prompts"] * s["samples"] * s["prompt_tokens"]
        node = {name: run.node_seconds(name) for name in run.nodes()}
        gap = max(m["logprob_gap_max"] for m in run.metrics)
        speed = {"generate": answers / node["rollout"], "log-prob": tokens / node["old_logprob"],
                 "update": tokens / node["update"], "an iteration": tokens / run.seconds()}
        for what, value in speed.items():
            self.emit(f"{what}, {label} {name}", value, "tok/s", gap_max=gap, nodes=node, seconds=run.seconds(),
                      predicted=run.plan["seconds"])
        self.emit(f"largest gap of log-probs, {label} {name}", gap, "")
        return speed

    def strict(self, row):
        self.numerics(row, dict(strict=dict(strict="true")))

    def numerics(self, row, others=None):
        others = others or {"strict": dict(strict="true"), "not deterministic": dict(deterministic="false")}
        _, label, s, _ = self.settings(row)
        run = self.iterations.get(row.split(":", 1)[1]) or self.execute(row, "grpo.yaml")[3]
        default = self.speeds(label, "default", s, run)
        for name, more in others.items():
            speed = self.speeds(label, name, s, self.execute(row, "grpo.yaml", **more)[3])
            for what, value in speed.items():
                self.emit(f"{name} over default: {what}, {label}", value / default[what], "")

    def single(self, row):
        model, label, s, options = self.settings(row)
        keep = {k: s[k] for k in ("model", "data", "prompt_tokens", "response_tokens", "rollout_in", "kv_in") if k in s}
        out = os.path.join(self.a.out, row.replace(":", "-"))
        run = common.execute(self.a.graphrun, os.path.join(HERE, "generate.yaml"), out, self.a.device, keep, options)
        seconds = run.node_seconds("rollout")
        read = common.decode_bytes(common.config(model), s["prompt_tokens"] + s["response_tokens"] // 2)
        rate = read * s["response_tokens"] / seconds / 1e9
        copies = [self.results.found("copy on the device", side) for side in ("ours", "theirs")]
        copy = max(x or COPY_GB_PER_SECOND for x in copies) if any(copies) else COPY_GB_PER_SECOND
        self.emit("one sequence " + label, rate, "GB/s", seconds=seconds, tokens_per_second=s["response_tokens"] / seconds)
        self.emit(f"one sequence {label}, share of copy bandwidth", rate / copy, "", copy=copy)
        self.theirs("single", model, "--prompt-tokens", s["prompt_tokens"], "--response-tokens", s["response_tokens"],
                    "--generate-tokens", min(128, s["response_tokens"] // 2))

    def lora(self, row):
        model, label, s, options = self.settings(row)
        for key in ("prompts", "samples", "grads", "moments", "master"):
            s.pop(key, None)
        s.setdefault("sequences", 64)
        s["data"] = common.write_rows(os.path.join(self.a.out, f"rows-{model}.jsonl"), 4 * s["sequences"], s["prompt_tokens"],
                                      s["response_tokens"])
        run = common.execute(self.a.graphrun, os.path.join(HERE, "lora.yaml"), os.path.join(self.a.out, row.replace(":", "-")),
                             self.a.device, s, options, self.a.timeout)
        n, tokens = common.active_of(common.config(model)), s["sequences"] * (s["prompt_tokens"] + s["response_tokens"])
        seconds = run.node_seconds("update")
        self.emit("update of adapters " + label, 4 * n * tokens / seconds / 1e12, "TFLOP/s", seconds=seconds, params=n,
                  log_prob=run.node_seconds("old_logprob"), merge=run.transfers("run", ".merge.")[1])
        self.emit(f"update of adapters {label}, tokens", tokens / seconds, "tok/s")
        self.memory("adapters " + label, run)
        self.theirs("lora", model, "--prompts", s["sequences"], "--samples", 1, "--prompt-tokens", s["prompt_tokens"],
                    "--response-tokens", s["response_tokens"], "--micro", 8)

    def plan(self, row):
        _, label, _, run = self.execute(row, "grpo.yaml", small=True)
        self.memory(label, run)

    def offload(self, row):
        _, label, _, run = self.execute(row, "grpo.yaml")
        for kind, name in (("load", "load under a budget"), ("offload", "offload under a budget")):
            c = run.copies(kind)
            if not c:
                raise common.Failed(f"{label}: the plan has no {kind} that moves bytes")
            self.emit(name, c["bytes"] / c["seconds"] / 1e9, "GB/s", of=label, **c)
            self.emit("copies hidden: " + kind, c["hidden"] / c["seconds"], "", of=label)
        self.memory(label, run)

    def calibrate(self, row):
        path = os.path.join(self.a.out, "hardware.json")
        begin = time.time()
        subprocess.run([self.a.graphrun, "calibrate", "--device", self.a.device, "-o", path], check=True, timeout=self.a.timeout)
        self.a.hardware = path
        self.emit("calibrate", time.time() - begin, "s")

    def head(self, row):
        self.program("head")
        self.theirs("head")

    def copies(self, row):
        self.program("copies")
        self.theirs("copies")


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("row", nargs="*")
    p.add_argument("--rows", choices=sorted(LISTS), help="a list of rows")
    p.add_argument("--graphrun", default="build/tools/graphrun")
    p.add_argument("--programs", default="build/tests/bench")
    p.add_argument("--out", default="bench-gpu")
    p.add_argument("--device", default="cuda")
    p.add_argument("--hardware", help="NAME or FILE that plans are made for; default: what graphrun finds")
    p.add_argument("--steps", type=int, default=3, help="iterations of a run; the first warms up")
    p.add_argument("--timeout", type=int, default=560, help="seconds that a row may take on either side")
    p.add_argument("--skip-theirs", action="store_true", help="only our side")
    p.add_argument("--prompts", type=int, default=32)
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--prompt-tokens", type=int, default=256)
    p.add_argument("--response-tokens", type=int, default=512)
    p.add_argument("--table", metavar="FILE", help="only print the table of an earlier run's results.jsonl")
    a = p.parse_args()
    if a.table:
        with open(a.table) as f:
            lines = [json.loads(line) for line in f]
        print(rows.table(lines, BARS) + rows.plans_table(lines))
        return 0
    known = ("iteration", "strict", "numerics", "single", "plan", "offload", "calibrate", "head", "copies", "lora")
    return rows.run(p, lambda: Bench(a), a.row + LISTS.get(a.rows, []), known)


if __name__ == "__main__":
    sys.exit(main())
