#!/usr/bin/env python3
"""What several GPUs of one host do, beside PyTorch's FSDP2 on the same GPUs in the same run.

    tests/bench/gpu/bench_ranks.py --gpus N --graphrun B/tools/graphrun --programs B/tests --out DIR ROW...
    tests/bench/gpu/bench_ranks.py --gpus N --graphrun B/tools/graphrun --predict --hardware h200 ROW...

Rows:

    nccl                              gathers and reductions by themselves (mpirun -n N gpu_nccl --bench)
    fsdp[:MODEL]                      PyTorch's side of what follows (8B, fp32 state)
    update:MODEL[:bf16][:key=value]   a log-prob pass and an update of 64 sequences a GPU, as FSDP2 is timed at; the gather
                                      of all weights after it, planned and measured peak, copies where the plan has any.
                                      budget=peer: what PyTorch allocated, by 44 / 44.8
    iteration:MODEL[:...]             the whole GRPO iteration, 32 prompts x 8 samples of 256 + 512 tokens a GPU
    scaling:MODEL[:...]               that iteration on 1, 2 ... N GPUs: what each keeps of the speed of one
    offload:MODEL[:...]               that iteration with `policy: transition`: training state leaves all ranks at once while
                                      they generate, and comes back
    tensor:MODEL[:...]                that iteration with the rollout's layers cut in 1, 2 ... N ways; resharding
    mesh:MODEL[:...]                  that update with each sequence or layer over two ranks and over four, with the model's experts
                                      divided, in stages, and with the mesh that the planner chooses: measured beside predicted, and what
                                      the planner's choice takes over the fastest
    split:MODEL[:...]                 that iteration colocated, and half of the GPUs training while the others generate, with
                                      `lag: 1` on both: predicted and measured

MODEL is 0.6B, 1.7B, 8B, 32B, 30B-A3B or 70B (published shapes, random weights); gradients, moments and master are fp32, as FSDP2 has them, or
bf16 without a master. Keys are budget, policy, steps and keys of the graph. `--rows table` is a list of them (eight minutes on
four GPUs), `--rows many` what four and eight GPUs are for besides (tests/bench/gpu/many.sh runs both). A row that the program at hand cannot do is a line that says so.

N in TFLOP/s is the number of parameters that a token uses, a token any token, 2 N a log-prob, 6 N an update; all rates are of one GPU. A
node's seconds, copies and gathers are those of rank 0, an iteration's are the host's, of the slowest rank. --predict runs
nothing: the same rows as plans predict them, on any machine.
"""
import argparse
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import common
import rows

LISTS = {
    # What a time limit would cost least is last.
    "table": ["update:8B", "fsdp:8B", "scaling:1.7B:steps=2", "offload:1.7B:steps=2", "tensor:1.7B:steps=2",
              "split:1.7B:steps=2", "update:8B:budget=peer", "update:8B:budget=peer:nodes.update.micro_tokens=6144",
              "iteration:8B:steps=2", "nccl"],
    "many": ["mesh:8B:steps=2", "fsdp:8B", "mesh:30B-A3B:bf16:steps=2", "iteration:30B-A3B:bf16:models.actor.parallel=auto:steps=2",
             "iteration:32B:steps=2", "update:70B:bf16:steps=2"],
}
OF_PEER = 44 / 44.8  # budget=peer: four GPUs were to do with 44 GB what PyTorch allocated 44.8 GB for


def bars(gpus):
    """(at least, aim) of a row; those of times are of four GPUs."""
    on = f"8B fp32 state on {gpus}"
    found = {f"log-prob {on}": (540, None), f"update {on}": (440, None), "offload on all ranks": (38, None),
             "load on all ranks": (50, None), "kept of one GPU's speed": (0.90, None)}
    if gpus == 4:
        found[f"gather of all weights {on}, bf16"] = (45, None)  # beside the optimizer's steps, and by itself, as PyTorch's is
        found["gather of all weights 8B alone, registered, on 4"] = (45, None)
    return found


class Bench:
    def __init__(self, a):
        self.a = a
        self.results = rows.Results(a.out, bars(a.gpus), a.timeout)
        self.emit = self.results.emit
        self.gather_rate = None  # bytes a second that the last row received its weights with
        self.peer = rows.Peer(self.results, "torch_fsdp.py", "--gpus", a.gpus) if self.wants_peer() else None

    def wants_peer(self):
        return not self.a.predict and not self.a.skip_theirs and any(r.startswith("fsdp") for r in self.a.row)

    # ---- one run ----

    def settings(self, row, graph, gpus):
        """A row's name as its model, what is said of it, settings of the graph and options."""
        name, *rest = row.split(":")[1:]
        a = self.a
        folder = os.path.join(a.out, "model-" + name)
        size = dict(prompt_tokens=a.prompt_tokens, response_tokens=a.response_tokens)
        s = dict(model=common.make_model(folder, name), **size)
        if graph == "update.yaml":
            s["sequences"] = a.sequences * gpus
            s["data"] = common.write_rows(folder + ".rows.jsonl", 4 * s["sequences"], *size.values())
        else:
            s.update(prompts=a.prompts * gpus, samples=a.samples)
            s["data"] = common.write_prompts(folder + ".jsonl", 4 * s["prompts"], a.prompt_tokens)
        state, said, options, steps = " fp32 state", [], ["--ranks", str(gpus)], a.steps
        for pair in rest:
            key, _, value = pair.partition("=")
            if pair == "bf16":
                state = ""
                s.update(grads="bf16", moments="bf16", master="none")
            elif key == "steps":
                steps = value
            elif key in ("budget", "policy"):
                options += ["--" + key, self.budget(name, value) if key == "budget" else value]
                said.append(pair)
            else:
                s[key] = value
                said.append(pair)
        options += ["--hardware", a.hardware] if a.hardware else []
        options += ["--host-budget", a.host_budget] if a.host_budget else []
        label = f"{name}{state} on {gpus}" + "".join(", " + x for x in said)
        return name, label, s, options, ["--steps", str(steps)]

    def budget(self, name, value):
        if value != "peer":
            return value
        peak = self.results.found(f"peak a GPU {name} fp32 state on {self.a.gpus}, GB", "theirs")
        if peak is None:
            raise common.Failed("budget=peer needs the row fsdp before it, on GPUs")
        return str(int(peak * OF_PEER * 1e9))

    def execute(self, row, graph, gpus=None, **more):
        """The Run, or with --predict the Plan, of a row."""
        a = self.a
        gpus = gpus or a.gpus
        name, label, s, options, steps = self.settings(row, graph, gpus)
        s.update(more)
        path = os.path.join(HERE, graph)
        if a.predict:
            return name, label, s, common.plan(a.graphrun, path, s, options)
        out = os.path.join(a.out, "-".join([re.sub(r"[^\w.=]", "-", row), graph.split(".")[0], str(gpus),
                                            *(f"{k}={v}" for k, v in more.items())]))
        return name, label, s, common.execute(a.graphrun, path, out, a.device, s, options + steps, a.timeout)

    def passes(self, name, label, s, run, gpus, sequences):
        """Rates of the log-prob pass and the update, memory, and what was predicted."""
        n = common.active_of(common.config(name))
        tokens = sequences * (s["prompt_tokens"] + s["response_tokens"]) / gpus
        for row, node, each in (("log-prob", "old_logprob", 2), ("update", "update", 6)):
            seconds = run.node_seconds(node)
            self.emit(f"{row} {label}", each * n * tokens / seconds / 1e12, "TFLOP/s", seconds=seconds,
                      tokens_per_second=tokens / seconds, predicted=run.predicted(node))
        self.emit("iteration: " + label, run.seconds(), "s", predicted=run.plan["seconds"], nodes=run.nodes())
        self.weights(label, run)
        if self.a.predict:
            self.emit(f"peak a GPU {label}, GB", run.plan["peak_bytes"] / 1e9, "GB")
            return
        m = run.memory()
        self.emit(f"peak a GPU {label}, GB", m["measured"] / 1e9, "GB", **m)
        self.results.memory(label, run)

    def weights(self, label, run):
        """All weights in bf16, gathered from their shards: once after the optimizer's steps, or in each pass."""
        size, seconds = run.transfers("gather", "update.gather.")
        if size:
            self.gather_rate = size / seconds
            self.emit(f"gather of all weights {label}, bf16", seconds * 1e3, "ms", received=size,
                      gb_per_second=size / seconds / 1e9)

    def copies(self, label, run):
        """Loads and offloads, of which all ranks do as many at the same time."""
        for kind in ("offload", "load"):
            c = None if self.a.predict else run.copies(kind)
            if self.a.predict:
                size, seconds = run.transfers(kind)
                c = dict(bytes=size, seconds=seconds) if size else None
            if c:
                self.emit(f"{kind} on all ranks: {label}", c["bytes"] / c["seconds"] / 1e9, "GB/s", **c)
                self.beside(f"{kind} on all ranks: {label}", f"{kind} on all ranks: ")
                if "hidden" in c:
                    self.emit(f"hidden behind compute, {kind}: {label}", c["hidden"] / c["seconds"], "")

    def beside(self, ours, theirs):
        """PyTorch's figure of the row whose name begins so, beside another of ours too."""
        line = next((r for r in reversed(self.results.lines) if r["row"].startswith(theirs) and r["side"] == "theirs"), None)
        if line and ours != line["row"]:
            self.results.keep(dict(line, row=ours, of=line["row"]))

    # ---- rows ----

    def nccl(self, row):
        if self.a.predict:
            raise common.Failed("is measured only")
        args = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", str(self.a.gpus),
                os.path.join(self.a.programs, "gpu", "gpu_nccl"), "--bench"]
        done = subprocess.run(args, stdout=subprocess.PIPE, text=True, timeout=self.a.timeout)
        times = {}
        for line in done.stdout.splitlines():
            m = re.match(r"(.*?)\s+(registered|plain)\s+([\d.]+) us\s+([\d.]+) GB/s", line)
            if m:
                times[m[1], m[2]] = float(m[3])
                self.emit(f"{m[1]}, {m[2]}, on {self.a.gpus}", float(m[4]), "GB/s", microseconds=float(m[3]))
        if done.returncode or not times:
            raise common.Failed(f"status {done.returncode}: {' '.join(args)}")
        for how in ("registered", "plain"):
            layer, head = times["gather of a layer of 8B, bf16", how], times["gather of the head of 8B, bf16", how]
            self.emit(f"gather of all weights 8B alone, {how}, on {self.a.gpus}", (36 * layer + 2 * head) / 1e3, "ms")
        self.beside(f"gather of all weights 8B alone, registered, on {self.a.gpus}", "gather of all weights 8B fp32 state")

    def fsdp(self, row):
        if not self.peer:
            raise common.Failed("is measured only")
        a = self.a
        self.peer.work("train", (row.split(":") + ["8B"])[1], "--gpus", a.gpus, "--sequences", a.sequences, "--prompt-tokens",
                       a.prompt_tokens, "--response-tokens", a.response_tokens, again=False)

    def update(self, row):
        name, label, s, run = self.execute(row, "update.yaml")
        if not self.a.predict and run.metrics[-1]["length"] != s["response_tokens"]:
            raise common.Failed(f"responses of {run.metrics[-1]['length']} tokens, not {s['response_tokens']}")
        self.passes(name, label, s, run, self.a.gpus, s["sequences"])
        self.copies(label, run)
        plain = label.split(",")[0]
        for what in ("log-prob {}", "update {}", "peak a GPU {}, GB", "reserved over allocated {}",
                     "gather of all weights {}, bf16"):
            self.beside(what.format(label), what.format(plain))

    def iteration(self, row):
        a = self.a
        name, label, s, run = self.execute(row, "grpo.yaml")
        label += ", whole iteration"
        self.generated(label, s, run, a.gpus)
        self.passes(name, label, s, run, a.gpus, s["prompts"] * s["samples"])
        self.copies(label, run)

    def generated(self, label, s, run, gpus):
        tokens = s["prompts"] * s["samples"] * s["response_tokens"] / gpus
        seconds = run.node_seconds("rollout")
        self.emit("generate " + label, tokens / seconds, "tok/s", seconds=seconds, predicted=run.predicted("rollout"))

    def scaling(self, row):
        gpus, first = 1, None
        while gpus <= self.a.gpus:
            _, label, s, run = self.execute(row, "grpo.yaml", gpus)
            self.emit("iteration: " + label, run.seconds(), "s", predicted=run.plan["seconds"],
                      nodes={n: run.node_seconds(n) for n in run.nodes()})
            first = first or run.seconds()
            if gpus > 1:
                self.emit(f"kept of one GPU's speed: {label}", first / run.seconds(), "")
            gpus *= 2

    def offload(self, row):
        _, label, _, run = self.execute(row + ":policy=transition", "grpo.yaml")
        self.copies(label, run)
        self.emit("iteration: " + label, run.seconds(), "s", predicted=run.plan["seconds"])

    def tensor(self, row):
        ways = 1
        while ways <= self.a.gpus:
            more = {"models.actor.residency.rollout_weights": "keep"}  # so that weights are sharded, and the rollout's apart
            if ways > 1:
                more["models.actor.tensor"] = ways
            _, label, s, run = self.execute(row, "grpo.yaml", **more)
            label += f", tensor {ways}"
            self.generated(label, s, run, self.a.gpus)
            size, seconds = run.transfers("sync")
            self.emit(f"iteration: {label}", run.seconds(), "s", predicted=run.plan["seconds"])
            self.emit(f"resharding {label}", seconds * 1e3, "ms", received=size,
                      predicted=common.Plan.transfers(run, "sync")[1] * 1e3,
                      at_the_rate_of_gathers=self.gather_rate and size / self.gather_rate * 1e3)
            ways *= 2

    def meshes(self, name):
        """Settings of `parallel` that N ranks and the model allow."""
        ways = [k for k in (2, 4, 8) if k <= self.a.gpus]
        one = [{axis: k} for axis in ("tensor", "context", "pipeline") for k in ways]
        both = [{"tensor": 2, axis: k // 2} for axis in ("context", "pipeline") for k in ways if k > 2]
        experts = [{"expert": k} for k in ways] if common.config(name).get("num_experts") else []
        return [{}, *one, *both, *experts]

    def mesh(self, row):
        name = row.split(":")[1]
        seconds = {}
        for mesh in [*self.meshes(name), "auto"]:
            said = ", ".join(f"{axis} {k}" for axis, k in mesh.items()) or "ZeRO alone" if mesh != "auto" else "auto"
            how = "{" + ", ".join(f"{axis}: {k}" for axis, k in mesh.items()) + "}" if mesh != "auto" else mesh
            more = {"models.actor.parallel": how} if mesh else {}
            try:
                _, label, s, run = self.execute(row, "update.yaml", **more)
            except common.Failed as e:  # this mesh is refused, or does not fit: the others are still to be seen
                self.results.keep(dict(row=f"update {name}, {said}", side="ours", value=None, unit="", failed=str(e)[:300]))
                continue
            self.passes(name, f"{label}, {said}", s, run, self.a.gpus, s["sequences"])
            seconds[said] = run.seconds()
        best = min((t for m, t in seconds.items() if m != "auto"), default=None)
        if best and "auto" in seconds:
            self.emit(f"planner's choice over the fastest mesh: {name} on {self.a.gpus}", seconds["auto"] / best, "", all=seconds)

    def split(self, row):
        for graph, name in (("pools.yaml", "colocated"), ("split.yaml", "split")):
            _, label, _, run = self.execute(row, graph, lag=1)
            label += ", lag 1, " + name
            self.emit("iteration: " + label, run.seconds(), "s", predicted=run.plan["seconds"])
            if not self.a.predict:
                self.emit("predicted over measured seconds, " + label, run.plan["seconds"] / run.seconds(), "")


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("row", nargs="*")
    p.add_argument("--rows", choices=sorted(LISTS), help="a list of rows")
    p.add_argument("--gpus", type=int, default=2)
    p.add_argument("--graphrun", default="build/tools/graphrun")
    p.add_argument("--programs", default="build/tests", help="the build's folder of tests")
    p.add_argument("--out", default="bench-ranks")
    p.add_argument("--device", default="cuda")
    p.add_argument("--hardware", help="NAME or FILE that plans are made for; default: what graphrun finds")
    p.add_argument("--host-budget", help="bytes of host memory for each rank; default: its part of what the host has")
    p.add_argument("--predict", action="store_true", help="run nothing: what plans predict")
    p.add_argument("--steps", type=int, default=3, help="iterations of a run; the first warms up")
    p.add_argument("--timeout", type=int, default=300, help="seconds that a row may take on either side")
    p.add_argument("--skip-theirs", action="store_true", help="only our side")
    p.add_argument("--sequences", type=int, default=64, help="of an update row, a GPU")
    p.add_argument("--prompts", type=int, default=32, help="of an iteration, a GPU")
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--prompt-tokens", type=int, default=256)
    p.add_argument("--response-tokens", type=int, default=512)
    a = p.parse_args()
    a.row += LISTS.get(a.rows, [])
    known = ("nccl", "fsdp", "update", "iteration", "scaling", "offload", "tensor", "mesh", "split")
    return rows.run(p, lambda: Bench(a), a.row, known)


if __name__ == "__main__":
    sys.exit(main())
