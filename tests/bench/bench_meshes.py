#!/usr/bin/env python3
"""Which mesh the planner chooses for a training iteration, for models of 8B to 671B on hosts of 8 GPUs: what docs/MESHES.md says.

    tests/bench/bench_meshes.py GRAPHRUN chosen [MODEL...]        `plan --explore` with `parallel: auto`, of 8, 64, 512 and 4,096 GPUs
    tests/bench/bench_meshes.py GRAPHRUN recipes [MODEL | SOURCE:MODEL]...   published recipes, as they are and as the planner would have it
    tests/bench/bench_meshes.py GRAPHRUN meshes RANKS MODEL MESH...   these alone: RANKS as 64x8, MESH as tensor=4,pipeline=8
    tests/bench/bench_meshes.py GRAPHRUN idle                     what stages wait at the ends of mini-batches, and what chunks give
    tests/bench/bench_meshes.py - picture ROWS                    an SVG of the table that `chosen` printed (docs/pictures/meshes.svg)
    tests/bench/bench_meshes.py - ranks TITLE GPUS MESH           an SVG of which ranks of the first hosts do what together

Nothing runs: these are plans, and their times are predictions. A row of a large model takes minutes. `chosen` and `recipes` say what
planning took: seconds of processors, and the most memory that the process had.
"""
import json
import math
import os
import re
import subprocess
import sys
import tempfile

BASE = dict(max_position_embeddings=163840, rms_norm_eps=1e-6, rope_theta=1e6, rope_scaling=None, hidden_act="silu", attention_bias=False,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=1, pad_token_id=2, torch_dtype="bfloat16")


def model(kind, cls, hidden, inner, layers, heads, kv, vocab, **more):
    return dict(BASE, architectures=[cls + "ForCausalLM"], model_type=kind, hidden_size=hidden, intermediate_size=inner,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, vocab_size=vocab, **more)


def experts(inner):
    return dict(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=inner, norm_topk_prob=True, head_dim=128)


MODELS = {
    "8B": model("qwen3", "Qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "Llama-8B": model("llama", "Llama", 4096, 14336, 32, 32, 8, 128256, head_dim=128, mlp_bias=False),
    "32B": model("qwen3", "Qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128),
    "70B": model("llama", "Llama", 8192, 28672, 80, 64, 8, 128256, head_dim=128, mlp_bias=False),
    "30B-A3B": model("qwen3_moe", "Qwen3Moe", 2048, 6144, 48, 32, 4, 151936, **experts(768)),
    "235B-A22B": model("qwen3_moe", "Qwen3Moe", 4096, 12288, 94, 64, 4, 151936, **experts(1536)),
    "671B": model("deepseek_v3", "DeepseekV3", 7168, 18432, 61, 128, 128, 129280, n_routed_experts=256, num_experts_per_tok=8,
                  moe_intermediate_size=2048, n_shared_experts=1, n_group=8, topk_group=4, first_k_dense_replace=3, q_lora_rank=1536,
                  kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, norm_topk_prob=True,
                  routed_scaling_factor=2.5, scoring_func="sigmoid", topk_method="noaux_tc"),
}
CHOSEN = ["8B", "32B", "70B", "235B-A22B", "671B"]
HOSTS = [1, 8, 64, 512]

# A published recipe: where it is from, model, hosts of 8 GPUs, sequences a step and their longest length, and how layers, sequences
# and experts are divided. docs/MESHES.md names repositories, files and commits.
RECIPES = [
    ("NeMo-RL", "Llama-8B", 2, 512, 4096, dict(pipeline=2)),
    ("NeMo-RL", "32B", 4, 512, 4096, dict(tensor=4, pipeline=4)),
    ("NeMo-RL", "70B", 4, 512, 4096, dict(tensor=4, pipeline=8)),
    ("NeMo-RL", "30B-A3B", 4, 512, 4096, dict(expert=8)),
    ("NeMo-RL", "235B-A22B", 16, 512, 8192, dict(tensor=2, context=2, pipeline=8, expert=16)),
    ("NeMo-RL", "671B", 32, 512, 1536, dict(pipeline=16, expert=16)),
    ("Megatron-Bridge", "Llama-8B", 1, 128, 8192, dict()),
    ("Megatron-Bridge", "70B", 8, 128, 8192, dict(tensor=4, pipeline=8)),
    ("Megatron-Bridge", "30B-A3B", 2, 512, 4096, dict(pipeline=2, expert=8)),
    ("Megatron-Bridge", "235B-A22B", 32, 2048, 4096, dict(tensor=2, pipeline=8, expert=32)),
    ("Megatron-Bridge", "671B", 128, 8192, 4096, dict(tensor=2, pipeline=8, expert=64)),
    ("verl", "30B-A3B", 1, 128, 10240, dict(tensor=4, pipeline=2, expert=2)),
    ("verl", "235B-A22B", 8, 2048, 12288, dict(tensor=4, pipeline=8, expert=4)),
    ("verl", "671B", 12, 256, 10240, dict(tensor=8, pipeline=12, expert=8)),
    ("slime", "30B-A3B", 1, 32, 10240, dict(tensor=4, expert=8)),
    ("slime", "32B", 1, 256, 10240, dict(tensor=8)),
    ("slime", "235B-A22B", 8, 64, 10240, dict(tensor=4, context=2, pipeline=4, expert=16)),
    ("slime", "671B", 16, 256, 32768, dict(tensor=8, context=4, pipeline=4, expert=32)),
]

GRAPH = """graph: mesh
params: {model: 8B.json, sequences: 512, half: 4096}
models:
  actor: {checkpoint: $model, train: {lr: 1.0e-6}}
nodes:
  docs: {op: sequences, file: none.jsonl, shuffle: false, batch: $sequences, prompt: "{question}", response: "{answer}", max_prompt_tokens: $half, max_tokens: $half}
  update: {op: update, model: actor, of: docs, loss: "-token_mean(logprob)"}
run: {steps: 3, seed: 1}
"""


class Planner:
    def __init__(self, graphrun, folder):
        self.graphrun, self.folder = os.path.abspath(graphrun), folder
        self.env = dict(os.environ, GRAPHRUN_TRY_EXPERTS="1")  # plans, too, of what is not run on CUDA devices
        for name, config in MODELS.items():
            with open(os.path.join(folder, name + ".json"), "w") as f:
                json.dump(config, f)
        with open(os.path.join(folder, "train.yaml"), "w") as f:
            f.write(GRAPH)

    def plan(self, hardware, ranks, name, parallel, *options, sequences=512, tokens=8192):
        """What was printed, what was said beside it, exit status, seconds of processors and MB of planning."""
        command = [self.graphrun, "plan", "train.yaml", "--hardware", hardware, "--ranks", ranks, "--set", f"params.model={name}.json",
                   "--set", f"params.sequences={sequences}", "--set", f"params.half={tokens // 2}", *options]
        if parallel == "auto":
            command += ["--set", "models.actor.parallel=auto"]
        else:
            for axis, n in parallel.items():
                command += ["--set", f"models.actor.parallel.{axis}={n}"]
        with open(os.path.join(self.folder, "out"), "w+") as out, open(os.path.join(self.folder, "err"), "w+") as err:
            child = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=err, env=self.env)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            return out.read(), err.read(), child.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024

    def take(self, *args, **more):
        """Seconds of an iteration and GiB of its peak, or why there are none."""
        out, err, status, spent, mb = self.plan(*args, "--format", "json", **more)
        if status == 0:
            p = json.loads(out)
            return p["seconds"], p["memory"]["peak_bytes"] / 2**30 if "memory" in p else p["peak_bytes"] / 2**30, "", spent, mb
        why = re.search(r"error: (.*)", err)
        return None, None, "does not fit" if status == 3 else why.group(1) if why else err, spent, mb


def mesh_name(mesh):
    return ", ".join(f"{axis} {n}" for axis, n in mesh.items() if n > 1) or "none"


def chosen_of(err):
    """Meshes with their seconds and peaks as the note of `auto` says them, the fastest first; how many there were and fit."""
    note = re.search(r"of (\d+) meshes of ranks (\d+) may fit, the fastest is chosen: (.*)", err)
    if not note:
        return [], 0, 0
    rows = re.findall(r"([a-z0-9, ]+?) \(([0-9.e+]+) s an iteration, peak ([0-9.]+ [A-Z]iB|[0-9.]+ GiB)\)", note.group(3).replace("then ", ""))
    return [(name.strip(), float(s), peak) for name, s, peak in rows], int(note.group(1)), int(note.group(2))


def chosen(planner, models):
    print("| model | GPUs | none | chosen | next | gain | tried, may fit | planned in |\n|---|---|---|---|---|---|---|---|")
    for name in models:
        for hosts in HOSTS:
            ranks = f"{hosts}x8"
            alone = planner.take("h200", ranks, name, {})
            out, err, status, spent, mb = planner.plan("h200", ranks, name, "auto", "--explore")
            rows, tried, fit = chosen_of(err)
            none = f"{alone[0]:.3g} s, {alone[1]:.0f} GiB" if alone[0] else alone[2]
            if not rows:
                print(f"| {name} | {8 * hosts:,} | {none} | does not fit | | | | {spent:.0f} s, {mb:.0f} MB |", flush=True)
                continue
            best, following = rows[0], rows[1] if len(rows) > 1 else None
            said = "; ".join(f"{n}: {s:.3g} s, {float(p.split()[0]):.0f} GiB" for n, s, p in (r for r in (best, following) if r)).split("; ")
            gain = f"{alone[0] / best[1]:.2f}" if alone[0] else ""
            print(f"| {name} | {8 * hosts:,} | {none} | {said[0]} | {said[1] if following else ''} | {gain} | {tried}, {fit} | "
                  f"{spent:.0f} s, {mb:.0f} MB |", flush=True)


def as_planned(mesh):
    """A recipe with stages beside experts, which runs on CPU ranks alone so far, and both halves of it."""
    if mesh.get("pipeline", 1) > 1 and mesh.get("expert", 1) > 1:
        return [mesh, *({a: n for a, n in mesh.items() if a != left} for left in ("expert", "pipeline"))]
    return [mesh]


def recipes(planner, models):
    print("| recipe | model | GPUs | step | their mesh | as planned | s | planner's choice | s | gain | planned in |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for source, name, hosts, sequences, tokens, mesh in RECIPES:
        if name not in models and f"{source}:{name}" not in models:
            continue
        size = dict(sequences=sequences, tokens=tokens)
        given = []
        for part in as_planned(mesh):
            seconds, peak, why, _, _ = planner.take("h100-80g", f"{hosts}x8", name, part, **size)
            given.append((mesh_name(part), seconds, why))
        out, err, status, spent, mb = planner.plan("h100-80g", f"{hosts}x8", name, "auto", **size)
        rows, _, _ = chosen_of(err)
        fits = [s for _, s, _ in given if s]
        best = f"{rows[0][0]} | {rows[0][1]:.3g}" if rows else f"{'does not fit' if status == 3 else err.strip()[-80:]} |"
        gain = f"{min(fits) / rows[0][1]:.2f}" if fits and rows else ""
        print(f"| {source} | {name} | {8 * hosts} | {sequences} x {tokens:,} | {mesh_name(mesh)} | {'; '.join(n for n, _, _ in given)} | "
              f"{'; '.join(f'{s:.3g}' if s else why for _, s, why in given)} | {best} | {gain} | {spent:.0f} s, {mb:.0f} MB |", flush=True)


def meshes(planner, ranks, name, rest):
    for text in rest:
        mesh = {axis: int(n) for axis, n in (x.split("=") for x in text.split(",") if "=" in x)}
        seconds, peak, why, _, _ = planner.take("h200", ranks, name, mesh)
        print(f"{ranks} {name} {mesh_name(mesh)}: " + (f"{seconds:.3g} s, {peak:.0f} GiB" if seconds else why), flush=True)


# Meshes with stages: those of published recipes without experts, and the fastest of our own with stages, of 8B to 671B.
STAGED = [("h100-80g", f"{hosts}x8", name, mesh, dict(sequences=n, tokens=tokens)) for _, name, hosts, n, tokens, mesh in RECIPES
          if mesh.get("pipeline", 1) > 1 and mesh.get("expert", 1) == 1]
STAGED += [("h200", ranks, name, mesh, {}) for ranks, name, mesh in (
    ("8x8", "8B", dict(pipeline=2)), ("64x8", "32B", dict(tensor=2, pipeline=2)), ("8x8", "70B", dict(pipeline=8)),
    ("512x8", "70B", dict(tensor=4, pipeline=2)), ("8x8", "235B-A22B", dict(pipeline=32)),
    ("512x8", "235B-A22B", dict(tensor=2, pipeline=32)), ("512x8", "235B-A22B", dict(tensor=2, pipeline=16)),
    ("512x8", "671B", dict(tensor=4, pipeline=8)))]


def idle_of(text, stages):
    """Seconds of an iteration, and what a rank of it waits at both ends of a mini-batch: there are as many trips more than
    micro-batches as stages but one."""
    p = json.loads(text)
    steps = p["ranks"][0]["steps"]
    waits, trips = 0.0, 0
    for i, s in enumerate(steps):
        if s["kind"] == "loop" and s["what"].endswith(".micro_batches"):
            body = sum(x["seconds"] for x in steps[i + 1:s["body_last"] + 1] if x["lane"] == "compute")
            trips = round(s["seconds"] / body)
            waits += s["seconds"] * (stages - 1) / trips
    return p["seconds"], waits, trips - stages + 1


def idle(planner):
    print("| model | GPUs | sequences | mesh | micro-batches | s | waits s | chunks 2 | chunks 4 | without waiting |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for hardware, ranks, name, mesh, size in STAGED:
        out, err, status, _, _ = planner.plan(hardware, ranks, name, mesh, "--format", "json", **size)
        hosts = int(ranks.split("x")[0])
        row = f"| {name} | {8 * hosts:,} {hardware} | {size.get('sequences', 512)} x {size.get('tokens', 8192):,} | {mesh_name(mesh)} | "
        if status:
            print(row + "does not fit | | | | | |", flush=True)
            continue
        seconds, waits, micro = idle_of(out, mesh["pipeline"])
        chunked = []
        for chunks in (2, 4):
            s, peak, why, _, _ = planner.take(hardware, ranks, name, dict(mesh, chunks=chunks), **size)
            chunked.append(f"{s:.3g}" if s else "too many" if "more than" in why else why)
        print(f"{row}{micro} | {seconds:.3g} | {waits:.3g} | {' | '.join(chunked)} | {seconds - waits:.3g} |", flush=True)


# ---- the picture ----

# Okabe and Ito's colours, which people with any colour vision tell apart; marks differ, too, and lines have their names at their ends.
STYLE = [("8B", "#0072B2", "circle"), ("32B", "#E69F00", "square"), ("70B", "#009E73", "diamond"), ("235B-A22B", "#CC79A7", "up"),
         ("671B", "#D55E00", "down")]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 860, 470, 70, 46, 400, 560


def mark(kind, x, y, colour):
    r = 5
    shapes = {"square": f"M{x - r} {y - r}h{2 * r}v{2 * r}h{-2 * r}z", "diamond": f"M{x} {y - r - 1}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
              "up": f"M{x} {y - r}l{r} {2 * r}h{-2 * r}z", "down": f"M{x} {y + r}l{r} {-2 * r}h{-2 * r}z"}
    if kind == "circle":
        return f'<circle cx="{x}" cy="{y}" r="{r}" fill="{colour}"/>'
    return f'<path d="{shapes[kind]}" fill="{colour}"/>'


HEAD = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">'
        "<style>svg{{color:#1a1a1a;background:#fff}}text{{fill:currentColor}}.g{{stroke:currentColor;stroke-opacity:.15}}.b{{fill:none;stroke:currentColor}}"
        "@media(prefers-color-scheme:dark){{svg{{color:#e6e6e6;background:#161616}}}}</style>")


def place(mesh, rank):
    """Coordinates of a rank, as runtime/comm/mesh.h counts them."""
    tensor, context, expert, pipeline = (mesh.get(a, 1) for a in ("tensor", "context", "expert", "pipeline"))
    return dict(tensor=rank % tensor, context=rank // tensor % context, pipeline=rank // (tensor * context) % pipeline, expert=rank % expert,
                data=rank // (tensor * context * pipeline))


def ranks_picture(title, gpus, text):
    """Hosts are rows of ranks. The colour is a rank's stage, or else its part of the experts; the number says which."""
    mesh = {axis: int(n) for axis, n in (x.split("=") for x in text.split(","))}
    by = "pipeline" if mesh.get("pipeline", 1) > 1 else "expert" if mesh.get("expert", 1) > 1 else "tensor"
    word = {"pipeline": "stage", "expert": "experts", "tensor": "slice"}[by]
    hosts, cell, left, top = min(gpus // 8, 10), 84, 80, 66
    height = top + hosts * 46 + 34
    data = gpus // math.prod(mesh.get(a, 1) for a in ("tensor", "context", "pipeline"))
    out = [HEAD.format(left + 8 * cell + 20, height),
           f'<text x="20" y="24" font-size="14">{title} on {gpus:,} GPUs: {mesh_name(mesh)}; {data:,} times, with sequences of their own</text>',
           f'<text x="20" y="44">colour and number: {word}; a box: ranks that share a sequence\'s tokens and slices; '
           f'the first {hosts} of {gpus // 8} hosts</text>']
    together = mesh.get("tensor", 1) * mesh.get("context", 1)
    for rank in range(8 * hosts):
        at, x, y = place(mesh, rank), left + rank % 8 * cell, top + rank // 8 * 46
        colour = STYLE[at[by] % len(STYLE)][1]
        if rank % 8 == 0:
            out.append(f'<text x="20" y="{y + 24}">host {rank // 8}</text>')
        out.append(f'<rect x="{x + 3}" y="{y + 3}" width="{cell - 6}" height="34" rx="4" fill="{colour}" fill-opacity=".35"/>'
                   f'<text x="{x + cell / 2}" y="{y + 18}" text-anchor="middle">{word} {at[by]}</text>'
                   f'<text x="{x + cell / 2}" y="{y + 32}" text-anchor="middle" font-size="10">'
                   + ", ".join(f"{a} {at[a]}" for a in ("tensor", "context", "data") if a == "data" or mesh.get(a, 1) > 1) + "</text>")
        if together > 1 and rank % together == 0 and together <= 8:
            out.append(f'<rect class="b" x="{x + 1}" y="{y + 1}" width="{together * cell - 2}" height="38" rx="5"/>')
    print("\n".join(out + ["</svg>"]))


def read_rows(path):
    found = {}
    for line in open(path):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) < 6 or not re.fullmatch(r"[\d,]+", cells[1]):
            continue
        seconds = re.match(r"([\d.e+]+) s,", cells[2]), re.match(r"(.*): ([\d.e+]+) s,", cells[3])
        if seconds[1]:
            found.setdefault(cells[0], []).append((int(cells[1].replace(",", "")), float(seconds[0].group(1)) if seconds[0] else None,
                                                   float(seconds[1].group(2)), seconds[1].group(1)))
    return found


def picture(path):
    rows = read_rows(path)
    most = max(max(r[1] or 0, r[2]) for points in rows.values() for r in points)
    least = min(min(r[1] or 1e9, r[2]) for points in rows.values() for r in points)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    x_of = lambda gpus: round(LEFT + 20 + (RIGHT - LEFT - 60) * math.log(gpus / 8) / math.log(512), 1)
    y_of = lambda s: round(BOTTOM - (BOTTOM - TOP) * (math.log10(s) - low) / (high - low), 1)
    out = [HEAD.format(WIDTH, HEIGHT),
           f'<text x="{LEFT}" y="20" font-size="14">Predicted seconds of a training iteration, 512 sequences of 8,192 tokens</text>',
           f'<text x="{LEFT}" y="36">full: the mesh that the planner chooses; dashed: one rank to a sequence, weights sharded over all</text>']
    for power in range(low, high + 1):
        y = y_of(10**power)
        out.append(f'<path class="g" d="M{LEFT} {y}H{RIGHT}"/><text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{10**power:g} s</text>')
    for gpus in (8, 64, 512, 4096):
        out.append(f'<text x="{x_of(gpus)}" y="{BOTTOM + 20}" text-anchor="middle">{gpus:,}</text>')
    out.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 40}" text-anchor="middle">GPUs (h200, hosts of 8)</text>')
    ends = []
    for name, colour, kind in STYLE:
        points = rows.get(name, [])
        for dashed, k in ((True, 1), (False, 2)):
            at = " ".join(f"{x_of(r[0])},{y_of(r[k])}" for r in points if r[k])
            line = 'stroke-width="1.5" stroke-dasharray="5 4"' if dashed else 'stroke-width="2.5"'
            out.append(f'<polyline points="{at}" fill="none" stroke="{colour}" {line}/>')
        out += [mark(kind, x_of(r[0]), y_of(r[2]), colour) for r in points]
        if points:
            ends.append((y_of(points[-1][2]), name, colour, kind, points))
    y = 0
    for at, name, colour, kind, points in sorted(ends):  # names at the lines' ends, apart from each other
        y = max(at, y + 44) if y else at
        out.append(f'<path class="g" d="M{x_of(points[-1][0]) + 8} {at}L{RIGHT + 4} {y - 4}" fill="none"/>')
        out.append(mark(kind, RIGHT + 14, y - 4, colour) + f'<text x="{RIGHT + 26}" y="{y}" font-weight="bold">{name}</text>')
        for i in range(0, len(points), 2):
            said = "; ".join(f"{r[0]:,}: {r[3]}" for r in points[i:i + 2])
            out.append(f'<text x="{RIGHT + 26}" y="{y + 13 + 6 * i}" font-size="10">{said}</text>')
    out.append("</svg>")
    print("\n".join(out))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    graphrun, what, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    if what == "picture":
        return picture(rest[0])
    if what == "ranks":
        return ranks_picture(rest[0], int(rest[1]), rest[2])
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(graphrun, folder)
        if what == "chosen":
            chosen(planner, rest or CHOSEN)
        elif what == "idle":
            idle(planner)
        elif what == "recipes":
            recipes(planner, rest or list(MODELS))
        elif what == "meshes":
            meshes(planner, rest[0], rest[1], rest[2:])
        else:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
