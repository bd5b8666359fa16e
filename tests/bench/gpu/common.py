"""What the GPU benchmarks and checks share: models to make, prompts, runs of graphrun and what they left behind.

Needs Python alone. A run's times come from two places: `seconds` of metrics.jsonl is the host's clock around a whole
iteration; a node's seconds are the span of its steps in trace.json, from the first to begin to the last to end, on the
device's own clock, so that what a node waits for the host counts as its time. What a plan predicts of a node is the same
span, of the steps as the plan lays them out (`begin` and `end` of `--format csv`): a node's copies may run beside its work,
or beside the work of the node before.
"""
import csv
import io
import json
import os
import random
import shutil
import statistics
import subprocess

GEMMA = dict(head_dim=256, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=256, num_hidden_layers=26,
             tie_word_embeddings=True)
SHAPES = {  # published ones; Qwen3, head_dim 128, 8 heads of keys and values, vocabulary 151,936 where not said
    "0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, tie_word_embeddings=True),
    "1.7B": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16, tie_word_embeddings=True),
    "4B": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32, tie_word_embeddings=True),
    "8B": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, tie_word_embeddings=False),
    "14B": dict(hidden_size=5120, intermediate_size=17408, num_hidden_layers=40, num_attention_heads=40, tie_word_embeddings=False),
    "32B": dict(hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64, tie_word_embeddings=False),
    "7B": dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=4096, intermediate_size=11008,
               num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, vocab_size=32000, tie_word_embeddings=False),
    # Llama 3's, which has another vocabulary
    "70B": dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
                num_attention_heads=64, vocab_size=128256, tie_word_embeddings=False),
    # experts: 4 heads of keys and values
    "30B-A3B": dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=2048, intermediate_size=6144,
                    moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1,
                    mlp_only_layers=[], num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
                    tie_word_embeddings=False),
    # a quarter of its layers
    "8B-A1.3B": dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=2048, intermediate_size=6144,
                     moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1,
                     mlp_only_layers=[], num_hidden_layers=12, num_attention_heads=32, num_key_value_heads=4,
                     tie_word_embeddings=False),
    # Gemma2 2B and Gemma3 1B: windows, caps, norms behind
    "gemma2-2B": dict(GEMMA, model_type="gemma2", architectures=["Gemma2ForCausalLM"], hidden_size=2304, intermediate_size=9216,
                      num_attention_heads=8, num_key_value_heads=4, vocab_size=256000, sliding_window=4096, rope_theta=1e4,
                      attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    "gemma3-1B": dict(GEMMA, model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], hidden_size=1152,
                      intermediate_size=6912, num_attention_heads=4, num_key_value_heads=1, vocab_size=262144,
                      sliding_window=512, sliding_window_pattern=6, rope_local_base_freq=1e4),
    # experts as in 30B-A3B, of a size that is there at once
    "1B-A0.3B": dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=1024, intermediate_size=3072,
                     moe_intermediate_size=512, num_experts=32, num_experts_per_tok=4, norm_topk_prob=True,
                     decoder_sparse_step=1, mlp_only_layers=[], num_hidden_layers=16, num_attention_heads=16,
                     num_key_value_heads=4, tie_word_embeddings=True),
    # 1.7B with the gated delta rule in three of four layers, and heads of 256 in the fourth
    "2B-hybrid": dict(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], hidden_size=2048, intermediate_size=6144,
                      num_hidden_layers=28, num_attention_heads=8, num_key_value_heads=2, head_dim=256, full_attention_interval=4,
                      partial_rotary_factor=0.25, linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128,
                      linear_value_head_dim=128, linear_conv_kernel_dim=4, tie_word_embeddings=True),
    # 8B's width in the layers of Qwen3.5-9B (with the vocabulary of the others): beside 8B, a parameter
    "9B-hybrid": dict(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], hidden_size=4096, intermediate_size=12288,
                      num_hidden_layers=32, num_attention_heads=16, num_key_value_heads=4, head_dim=256, full_attention_interval=4,
                      partial_rotary_factor=0.25, linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
                      linear_value_head_dim=128, linear_conv_kernel_dim=4, tie_word_embeddings=False),
    # to try the scripts where there is no GPU
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=16, vocab_size=600, tie_word_embeddings=True),
}
SHAPES["tiny-experts"] = dict(SHAPES["1B-A0.3B"], hidden_size=64, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
                              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=600)
SHAPES["tiny-hybrid"] = dict(SHAPES["2B-hybrid"], hidden_size=64, intermediate_size=128, num_hidden_layers=4,
                             num_attention_heads=4, num_key_value_heads=2, head_dim=16, partial_rotary_factor=0.5,
                             linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                             vocab_size=600)
KV_HEADS, HEAD_DIM, VOCAB = 8, 128, 151936
FIRST_CHARACTER = 0x4E00  # characters of the tokenizer: ids 4 and up, in order
CHARACTERS = 500


def config(name):
    """config.json of a model; random weights follow from it."""
    shape = dict(num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=VOCAB)
    both = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", max_position_embeddings=4096, rms_norm_eps=1e-6,
                rope_theta=1e6, rope_scaling=None, hidden_act="silu", attention_bias=False, initializer_range=0.02,
                bos_token_id=None, eos_token_id=1, pad_token_id=2, torch_dtype="bfloat16")
    both.update(shape, **SHAPES[name])
    return both


def params_of(c, experts=None):
    """Number of all parameters: the N of every count here. Of a model with experts, with so many in each layer; `active_of`
    counts those that a token goes through."""
    h, i, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    channels = 3 * h * i
    if "num_experts" in c:
        channels = h * c["num_experts"] + (experts or c["num_experts"]) * 3 * h * c["moe_intermediate_size"]
    rules, layers = rules_of(c), c["num_hidden_layers"]
    mixers = (layers - rules) * (2 * d + h * ((3 if rules else 2) * q + 2 * kv))  # a hybrid's attention has an output gate
    if rules:
        keys, values, heads = rule_widths(c)
        mixers += rules * (h * (2 * keys + 3 * values + 2 * heads) + c["linear_conv_kernel_dim"] * (2 * keys + values) +
                           2 * heads + c["linear_value_head_dim"])
    return mixers + layers * (2 * h + channels) + h + c["vocab_size"] * h * (1 if c["tie_word_embeddings"] else 2)


def rules_of(c):
    """Layers of the gated delta rule."""
    every = c.get("full_attention_interval")
    return c["num_hidden_layers"] - c["num_hidden_layers"] // every if every else 0


def rule_widths(c):
    """Of all key heads, of all value heads, and how many value heads."""
    heads = c["linear_num_value_heads"]
    return c["linear_num_key_heads"] * c["linear_key_head_dim"], heads * c["linear_value_head_dim"], heads


def active_of(c):
    return params_of(c, c.get("num_experts_per_tok"))


def decode_bytes(c, keys):
    """Bytes that one token of one sequence must read: all weights but the embedding's other rows, and its keys and
    values; and states of one size, which it reads and writes."""
    read = active_of(c) - (0 if c["tie_word_embeddings"] else c["vocab_size"] * c["hidden_size"])
    rules = rules_of(c)
    kv = 2 * (c["num_hidden_layers"] - rules) * c["num_key_value_heads"] * c["head_dim"]
    states = 0
    if rules:
        k, v, _ = rule_widths(c)
        states = rules * 2 * 4 * (v * c["linear_key_head_dim"] + (c["linear_conv_kernel_dim"] - 1) * (2 * k + v))
    return 2 * (read + kv * keys) + states


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f)


def write_tokenizer(folder):
    write_json(os.path.join(folder, "tokenizer_config.json"),
               dict(char_ords=list(range(FIRST_CHARACTER, FIRST_CHARACTER + CHARACTERS)), model_max_length=4096))


def make_model(folder, name):
    """A folder with a bare config.json and a tokenizer of one token a character; returns the path of config.json."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "config.json")
    write_json(path, config(name))
    write_tokenizer(folder)
    return path


def random_text(rng, n):
    return "".join(chr(FIRST_CHARACTER + rng.randrange(CHARACTERS)) for _ in range(n))


def write_prompts(path, records, tokens):
    rng = random.Random(1)
    with open(path, "w") as f:
        for i in range(records):
            f.write(json.dumps(dict(text=random_text(rng, tokens), answer=str(i))) + "\n")
    return path


def write_rows(path, records, prompt_tokens, response_tokens):
    """Prompts with their responses."""
    rng = random.Random(2)
    with open(path, "w") as f:
        for _ in range(records):
            f.write(json.dumps(dict(text=random_text(rng, prompt_tokens), answer=random_text(rng, response_tokens))) + "\n")
    return path


class Failed(Exception):
    pass


def arguments(graph, settings, options=()):
    args = [graph, *options]
    for key, value in settings.items():
        args += ["--set", f"{key}={value}"]
    return args


def execute(graphrun, graph, out, device, settings, options=(), timeout=560, env=None):
    """Run a graph into a fresh folder as `launch` does. Returns the folder's Run."""
    launch(graphrun, graph, out, device, settings, options, timeout, env)
    options = list(options)
    if "--steps" in options:
        i = options.index("--steps")
        del options[i:i + 2]
    return Run(out, planned(graphrun, graph, settings, [*options, "--device", device], "csv"))


def launch(graphrun, graph, out, device, settings, options=(), timeout=560, env=None):
    """Run a graph into a fresh folder; what it prints goes to OUT.log. A run that is out of time is asked to end with its
    iteration, and its ranks with it, before it is killed."""
    shutil.rmtree(out, ignore_errors=True)
    args = [graphrun, "exec", *arguments(graph, settings, ["--device", device, "--out", out, *options])]
    with open(out + ".log", "w") as log:
        process = subprocess.Popen(args, stdout=log, stderr=subprocess.STDOUT, env=env)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            raise Failed(f"no end within {timeout} s: " + " ".join(args)) from None
    if status:
        with open(out + ".log") as log:
            raise Failed(f"status {status}: " + " | ".join(log.read().strip().splitlines()[-6:]))


def planned(graphrun, graph, settings, options, form):
    args = [graphrun, "plan", *arguments(graph, settings, [*options, "--format", form])]
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stderr.strip() or f"status {done.returncode}: " + " ".join(args))
    return done.stdout


def plan(graphrun, graph, settings, options=()):
    """The Plan of a graph: nothing runs."""
    return Plan(*(planned(graphrun, graph, settings, options, form) for form in ("json", "csv")))


def union(spans):
    """Sorted, merged intervals."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def covered(begin, end, merged):
    """How much of [begin, end] lies in merged intervals."""
    return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in merged)


class Plan:
    """What a plan of one class of ranks says; `Run` measures the same."""

    def __init__(self, plan, steps):
        """plan: its JSON; steps: the same plan as CSV, of all classes of ranks one after another."""
        self.plan = json.loads(plan)
        self.times = {}
        for row in csv.DictReader(io.StringIO(steps)):
            if row["i"] in self.times:
                break  # the next class
            self.times[row["i"]] = (row["node"], float(row["begin"]), float(row["end"]))

    @property
    def rank(self):
        return self.plan["ranks"][0]

    def nodes(self):
        return list(dict.fromkeys(s["node"] for s in self.rank["steps"]))

    def predicted(self, node):
        """From the begin of a node's first step to the end of its last."""
        mine = [(begin, end) for name, begin, end in self.times.values() if name == node]
        return max(end for _, end in mine) - min(begin for begin, _ in mine) if mine else 0.0

    def node_seconds(self, node):
        return self.predicted(node)

    def seconds(self):
        return self.plan["seconds"]

    def of_kind(self, kind, what=""):
        """Steps of a kind whose name has that in it, by name, as (bytes, predicted seconds)."""
        return {s["what"]: (s["bytes"], s["seconds"]) for s in self.rank["steps"]
                if s["kind"] == kind and what in s["what"]}

    def transfers(self, kind, what=""):
        """Bytes and seconds of the steps of a kind, each of them once."""
        steps = self.of_kind(kind, what).values()
        return sum(b for b, _ in steps), sum(s for _, s in steps)


class Run(Plan):
    """A run directory: metrics, plan, and its trace (rank 0's) cut into iterations."""

    def __init__(self, folder, steps=""):
        self.folder = folder
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            self.metrics = [json.loads(line) for line in f]
        with open(os.path.join(folder, "plan.json")) as f:
            super().__init__(f.read(), steps)
        with open(os.path.join(folder, "trace.json")) as f:
            events = json.load(f)
        self.lanes = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        self.paths = set(self.rank["paths"])
        self.events = sorted((e for e in events if e["ph"] == "X" and e["cat"] not in ("init", "checkpoint", "final", "iteration")),
                             key=lambda e: e["ts"])
        # Of the steady iteration: it draws the records. Copies may stand before it, and come again.
        first = next(s["what"] for s in self.rank["steps"] if s["kind"] == "run")
        begins = [e["ts"] for e in self.events if e["name"] == first]
        self.iterations = [[e for e in self.events if begin <= e["ts"] < end]
                           for begin, end in zip(begins, begins[1:] + [float("inf")])]

    def nodes(self):
        return [key[len("seconds."):] for key in self.metrics[-1] if key.startswith("seconds.")]

    def span(self, iteration, node):
        """Seconds from a node's first step to the end of its last; 0 where it did nothing."""
        mine = [e for e in self.iterations[iteration] if e["cat"] == node]
        return (max(e["ts"] + e["dur"] for e in mine) - mine[0]["ts"]) * 1e-6 if mine else 0.0

    def measured(self):
        """Indices of the iterations that count: all but the first."""
        return range(1 if len(self.metrics) > 1 else 0, len(self.metrics))

    def node_seconds(self, node):
        return statistics.median(self.span(i, node) for i in self.measured())

    def seconds(self):
        return statistics.median(self.metrics[i]["seconds"] for i in self.measured())

    def transfers(self, kind, what=""):
        """As measured: seconds of all executions of these steps in an iteration (the median) over how often each was
        executed."""
        steps = self.of_kind(kind, what)
        events = [[e["dur"] for e in self.iterations[i] if e["name"] in steps] for i in self.measured()]
        times = statistics.median(sum(e) for e in events) * 1e-6 if steps else 0.0
        often = max(len(e) for e in events) / len(steps) if steps else 1
        return sum(b for b, _ in steps.values()), times / max(often, 1)

    def memory(self):
        """Planned and measured peak; arena against the most bytes of it that any step of the iteration has in use."""
        used = max(s["resident_bytes"] for s in self.rank["steps"])
        return dict(planned=self.plan["peak_bytes"], measured=max(m["measured_peak_bytes"] for m in self.metrics),
                    arena=self.rank["arena_bytes"], overhead=self.rank["overhead_bytes"], used=used,
                    host=self.rank["host_peak_bytes"])

    def copies(self, kind):
        """Loads or offloads of the whole run (a copy may begin before the iteration that it is of): bytes, seconds of
        copying, and of those the seconds during which the compute lane worked too. None where nothing moved."""
        sizes = {name: size for name, (size, _) in self.of_kind(kind).items()}
        lane = {"load": "h2d", "offload": "d2h"}[kind]
        total = dict(bytes=0, seconds=0.0, hidden=0.0)
        busy = union((e["ts"], e["ts"] + e["dur"]) for e in self.events if self.lanes[e["tid"]] == "compute")
        for e in self.events:
            if self.lanes[e["tid"]] == lane and e["name"] in sizes:
                total["bytes"] += sizes[e["name"]]
                total["seconds"] += e["dur"] * 1e-6
                total["hidden"] += covered(e["ts"], e["ts"] + e["dur"], busy) * 1e-6
        return total if total["bytes"] else None

    def copying(self):
        """Of loads and offloads together, a measured iteration: bytes, seconds of copying, the share of these during which
        the compute lane worked too, and the seconds in which copies ran and the compute lane did not. None where nothing
        moved."""
        kinds = [c for c in (self.copies("load"), self.copies("offload")) if c]
        if not kinds:
            return None
        bare = 0.0
        for i in self.measured():
            events = self.iterations[i]
            busy = union((e["ts"], e["ts"] + e["dur"]) for e in events if self.lanes[e["tid"]] == "compute")
            copies = union((e["ts"], e["ts"] + e["dur"]) for e in events if self.lanes[e["tid"]] in ("h2d", "d2h"))
            bare += sum(end - begin - covered(begin, end, busy) for begin, end in copies) * 1e-6
        n, seconds = len(self.measured()), sum(c["seconds"] for c in kinds)
        return dict(bytes=sum(c["bytes"] for c in kinds) / n, seconds=seconds / n, hidden=sum(c["hidden"] for c in kinds) / seconds,
                    bare=bare / n)
