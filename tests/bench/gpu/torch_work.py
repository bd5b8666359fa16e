"""The PyTorch side of tests/bench/gpu/bench.py: the same work, counted the same way, in plain PyTorch and transformers.

    torch_work.py iteration MODEL [--state bf16|fp32] [--prompts 32 --samples 8 --prompt-tokens 256 --response-tokens 512]
    torch_work.py lora MODEL          an update of adapters of rank 32 on all seven matrices of a layer: by peft where it is
                                      installed, else by plain modules that compute as peft's do
    torch_work.py single MODEL        one sequence
    torch_work.py head                log-probs of 8192 rows of a head of 151,936 x 4,096, and its product alone
    torch_work.py copies              device, host to device and back, pinned
    torch_work.py wait                imports, then takes one of these from standard input, as a JSON list of arguments

N is the number of all parameters and tokens are all tokens of a sequence; the head runs on response positions alone. One
JSON line a result: {"row": ..., "side": "theirs", "value": ..., "unit": ...}. State bf16: weights, gradients and moments
are bf16; fp32: all three are, and the passes run under bf16 autocast.

Where the whole would take too long, --generate-tokens times so many tokens in the middle of the responses, whose context is as
long as that of all on average: a response then takes what reading its prompt and drawing its first token took, and as much for each
other token as these took. --train-sequences takes so many of the sequences in the passes. Rates are of what ran, a whole
iteration is scaled up to all of it, and the lines say so.
"""
import argparse
import gc
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch
import torch.nn.functional as F
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

import common

GPU, DEVICE = False, "cpu"


def find_device():
    """Not while it is imported: a process that waits must hold nothing on the device."""
    global GPU, DEVICE
    GPU = torch.cuda.is_available()
    DEVICE = "cuda" if GPU else "cpu"


def now():
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(work):
    begin = now()
    result = work()
    return now() - begin, result


def emit(row, value, unit, **detail):
    print(json.dumps(dict(row=row, side="theirs", value=value, unit=unit, **detail)), flush=True)


def peak(reset=False):
    """Most bytes allocated and reserved since the last reset."""
    if not GPU:
        return {}
    found = dict(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())
    if reset:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


def make_model(name, state):
    keep = {k: v for k, v in common.config(name).items() if k not in ("architectures", "model_type", "torch_dtype")}
    keep["rope_parameters"] = dict(rope_type="default", rope_theta=keep.pop("rope_theta"))
    keep.pop("rope_scaling")
    llama = common.config(name)["model_type"] == "llama"
    config = (LlamaConfig if llama else Qwen3Config)(**keep)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if state == "bf16" else torch.float32)
    with torch.device(DEVICE):
        model = (LlamaForCausalLM if llama else Qwen3ForCausalLM)(config)
    torch.set_default_dtype(torch.float32)
    return model


def random_ids(model, *shape):
    return torch.randint(4, model.config.vocab_size, shape, device=DEVICE)


def sample(model, ids, tokens):
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                          do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0)


def response_seconds(model, ids, tokens, drawn):
    """Seconds of a response of so many tokens, from `drawn` in its middle, and what ran of it."""
    first, _ = timed(lambda: sample(model, ids, 1))
    middle = torch.cat([ids, random_ids(model, ids.shape[0], (tokens - drawn) // 2)], 1)
    before, _ = timed(lambda: sample(model, middle, 1))
    after, _ = timed(lambda: sample(model, middle, 1 + drawn))
    token = (after - before) / drawn
    part = dict(first_token=first, next_token=token, generated_tokens=drawn, context=middle.shape[1])
    return first + token * (tokens - 1), part


class Work:
    def __init__(self, a):
        self.a = a
        self.model = make_model(a.model, a.state)
        self.n = sum(p.numel() for p in self.model.parameters())
        self.prompt = random_ids(self.model, a.prompts, a.prompt_tokens)
        self.ids = self.prompt.repeat_interleave(a.samples, 0)
        self.trained = a.train_sequences or self.ids.shape[0]
        self.tokens = self.trained * (a.prompt_tokens + a.response_tokens)
        self.part = {} if self.trained == self.ids.shape[0] else dict(trained_sequences=self.trained)

    def label(self, what):
        return f"{what} {self.a.model}" + ("" if self.a.state == "bf16" else " fp32 state")

    def cast(self):
        return torch.autocast(DEVICE, torch.bfloat16, enabled=self.a.state == "fp32")

    def generate(self):
        a, part = self.a, {}
        self.model.eval()
        with torch.no_grad(), self.cast():
            sample(self.model, self.ids[:8], 4)
            if a.generate_tokens:
                seconds, part = response_seconds(self.model, self.ids, a.response_tokens, a.generate_tokens)
                answer = random_ids(self.model, self.trained, a.response_tokens)
                self.seq = torch.cat([self.ids[:self.trained], answer], 1)
            else:
                seconds, seq = timed(lambda: sample(self.model, self.ids, a.response_tokens))
                self.seq = seq[:self.trained]
        emit(self.label("generate"), self.ids.shape[0] * a.response_tokens / seconds, "tok/s", seconds=seconds, **part,
             **peak(reset=True))
        self.part.update({k: part[k] for k in part if k == "generated_tokens"})
        return seconds

    def logprob_of(self, x):
        with self.cast():
            hidden = self.model.model(x).last_hidden_state[:, self.a.prompt_tokens - 1:-1]
            logits = self.model.lm_head(hidden).float()
        return torch.log_softmax(logits, -1).gather(-1, x[:, self.a.prompt_tokens:, None])[..., 0]

    def micro_batches(self):
        return self.seq.split(self.a.micro)

    def logprob(self):
        with torch.no_grad():
            self.logprob_of(self.seq[:self.a.micro])
            seconds, self.old = timed(lambda: torch.cat([self.logprob_of(x) for x in self.micro_batches()]))
        emit(self.label("log-prob"), 2 * self.n * self.tokens / seconds / 1e12, "TFLOP/s", seconds=seconds,
             tokens_per_second=self.tokens / seconds, **self.part, **peak(reset=True))
        return seconds * self.ids.shape[0] / self.trained

    def backward(self, x, old, advantage, parts):
        ratio = torch.exp(self.logprob_of(x) - old)
        loss = torch.max(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage).mean() / parts
        loss.backward()

    def step(self, parts):
        for x, old, advantage in parts:
            self.backward(x, old, advantage, len(parts))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def update(self):
        self.model.train()
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=GPU)
        advantage = torch.randn(self.seq.shape[0], 1, device=DEVICE)
        parts = list(zip(self.micro_batches(), self.old.split(self.a.micro), advantage.split(self.a.micro)))
        self.step(parts[:2])  # warm-up: moments are made, kernels chosen
        seconds, _ = timed(lambda: self.step(parts))
        used = peak()
        emit(self.label("update"), 6 * self.n * self.tokens / seconds / 1e12, "TFLOP/s", seconds=seconds,
             tokens_per_second=self.tokens / seconds, **self.part, **used)
        if used:
            emit(self.label("reserved over allocated"), used["reserved"] / used["allocated"], "", **used)
        return seconds * self.ids.shape[0] / self.trained

    def offload(self):
        size = sum(p.numel() * p.element_size() for p in self.model.parameters())
        seconds, _ = timed(lambda: self.model.to("cpu"))
        emit(self.label("offload"), size / seconds / 1e9, "GB/s", seconds=seconds, bytes=size, how="model.to('cpu')")
        seconds, _ = timed(lambda: self.model.to(DEVICE))
        emit(self.label("load"), size / seconds / 1e9, "GB/s", seconds=seconds, bytes=size, how="model.to('cuda')")


def iteration(a):
    work = Work(a)
    parts = dict(generate=work.generate(), logprob=work.logprob(), update=work.update())
    emit(work.label("iteration"), sum(parts.values()), "s", **parts, **work.part)
    if GPU:
        work.offload()


class Adapted(torch.nn.Module):
    """As peft.tuners.lora.Linear: base(x) + B(A(x)) alpha / rank."""

    def __init__(self, base, rank=32, alpha=64):
        super().__init__()
        like = dict(bias=False, device=base.weight.device, dtype=base.weight.dtype)
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.a = torch.nn.Linear(base.in_features, rank, **like)
        self.b = torch.nn.Linear(rank, base.out_features, **like)
        torch.nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x)) * self.scale


MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapt(model):
    """Adapters, which alone are trained; what they are."""
    model.requires_grad_(False)
    try:
        import peft
        peft.get_peft_model(model, peft.LoraConfig(r=32, lora_alpha=64, target_modules=MATRICES), autocast_adapter_dtype=False)
        return "peft " + peft.__version__
    except ImportError:
        for layer in model.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name in MATRICES:
                    if hasattr(part, name):
                        setattr(part, name, Adapted(getattr(part, name)))
        return "modules as peft's"


class LoraWork(Work):
    def __init__(self, a):
        super().__init__(a)
        self.how = adapt(self.model)
        self.seq = torch.cat([self.ids, random_ids(self.model, self.ids.shape[0], a.response_tokens)], 1)

    def update(self):
        """The faster of passes that keep all activations, where there is room, and such that keep each layer's input."""
        best = None
        self.old = torch.zeros(self.seq.shape[0], self.a.response_tokens, device=DEVICE) - 12
        self.model.train()
        self.model.enable_input_require_grads()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=GPU)
        advantage = torch.randn(self.seq.shape[0], 1, device=DEVICE)
        parts = list(zip(self.micro_batches(), self.old.split(self.a.micro), advantage.split(self.a.micro)))
        for checkpointing in (False, True):
            (self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False)) if checkpointing
             else self.model.gradient_checkpointing_disable())
            try:
                peak(reset=True)
                self.step(parts[:2])
                seconds, _ = timed(lambda: self.step(parts))
            except torch.OutOfMemoryError:
                continue
            if best is None or seconds < best[0]:
                best = seconds, dict(how=self.how, checkpointing=checkpointing, **peak())
        seconds, detail = best
        emit(f"update of adapters {self.a.model}", 4 * self.n * self.tokens / seconds / 1e12, "TFLOP/s", seconds=seconds, **detail)
        emit(f"update of adapters {self.a.model}, tokens", self.tokens / seconds, "tok/s")


def lora(a):
    LoraWork(a).update()


def single(a):
    model = make_model(a.model, "bf16").eval()
    ids = random_ids(model, 1, a.prompt_tokens)
    part = {}
    with torch.no_grad():
        sample(model, ids, 4)
        if a.generate_tokens:
            seconds, part = response_seconds(model, ids, a.response_tokens, a.generate_tokens)
        else:
            seconds, _ = timed(lambda: sample(model, ids, a.response_tokens))
    read = common.decode_bytes(common.config(a.model), a.prompt_tokens + a.response_tokens // 2)
    emit(f"one sequence {a.model}", read * a.response_tokens / seconds / 1e9, "GB/s", seconds=seconds,
         tokens_per_second=a.response_tokens / seconds, **part)


def median_ms(work, n=9):
    for _ in range(3):
        work()
    times = []
    for _ in range(n):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def head(a):
    rows, vocab, hidden = 8192, common.VOCAB, 4096
    x = torch.randn(rows, hidden, device=DEVICE, dtype=torch.bfloat16)
    w = torch.randn(vocab, hidden, device=DEVICE, dtype=torch.bfloat16) * 0.02
    target = torch.randint(vocab, (rows, 1), device=DEVICE)
    flops = 2 * rows * vocab * hidden
    product = median_ms(lambda: F.linear(x, w))

    def logprob():
        return torch.log_softmax(F.linear(x, w).float(), -1).gather(-1, target)
    with torch.no_grad():
        whole = median_ms(logprob)
    emit("head product alone", flops / product / 1e9, "TFLOP/s", ms=product)
    emit("head log-prob", flops / whole / 1e9, "TFLOP/s", ms=whole, share_of_product=product / whole)


def copies(a):
    size = 2 << 30
    x, y = (torch.empty(size, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pageable = torch.ones(size, dtype=torch.uint8)
    emit("copy on the device", 2 * size / median_ms(lambda: y.copy_(x)) / 1e6, "GB/s")
    emit("host to device", size / median_ms(lambda: x.copy_(pinned, non_blocking=True), 5) / 1e6, "GB/s", how="pinned")
    emit("device to host", size / median_ms(lambda: pinned.copy_(x, non_blocking=True), 5) / 1e6, "GB/s", how="pinned")
    emit("host to device, pageable", size / median_ms(lambda: x.copy_(pageable), 3) / 1e6, "GB/s")
    emit("device to host, pageable", size / median_ms(lambda: pageable.copy_(x), 3) / 1e6, "GB/s")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("work", choices=["iteration", "lora", "single", "head", "copies", "wait"])
    p.add_argument("model", nargs="?", default="0.6B")
    p.add_argument("--state", choices=["bf16", "fp32"], default="bf16")
    p.add_argument("--prompts", type=int, default=32)
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--prompt-tokens", type=int, default=256)
    p.add_argument("--response-tokens", type=int, default=512)
    p.add_argument("--generate-tokens", type=int, default=0, help="of each response, in its middle; 0: all")
    p.add_argument("--train-sequences", type=int, default=0, help="in the passes; 0: all")
    p.add_argument("--micro", type=int, default=16, help="sequences of a micro-batch")
    a = p.parse_args()
    if a.work == "wait":
        line = sys.stdin.readline()
        if not line:
            return
        a = p.parse_args(json.loads(line))
    find_device()
    {"iteration": iteration, "lora": lora, "single": single, "head": head, "copies": copies}[a.work](a)


if __name__ == "__main__":
    main()
