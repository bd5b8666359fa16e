"""The PyTorch side of tests/bench/gpu/bench_ranks.py: FSDP2, one process a GPU, over NCCL (gloo where there is none).

    torch_fsdp.py train MODEL [--gpus N] [--state fp32|bf16] [--sequences 64] [--micro 8] [--copy-gb 8]
    torch_fsdp.py wait        imports, then takes one of these from standard input, as a JSON list of arguments

A log-prob pass and an update (forward, backward with recomputation, AdamW) of so many sequences a GPU, of 256 + 512 tokens,
in micro-batches; then a gather of all weights in bf16, the training state to host memory and back, and copies of pinned
memory. Each layer is sharded by itself; parameters, moments and gradients are of --state, passes are in bf16, gradients are
reduced in fp32. N is the number of all parameters, a token any token of a sequence, 2 N a log-prob and 6 N an update, the
head runs on response positions; TFLOP/s are of one GPU. Rank 0 prints one JSON line a result.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common

if "RANK" in os.environ:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
    from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding


class Ranks:
    """This process among the others, and its device."""

    def __init__(self):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", self.rank) if self.gpu else torch.device("cpu")
        if self.gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.gpu else "gloo", device_id=self.device if self.gpu else None)

    def now(self):
        """The host's clock when all ranks have done what they were given."""
        if self.gpu:
            torch.cuda.synchronize()
        dist.barrier()
        return time.perf_counter()

    def timed(self, work):
        begin = self.now()
        result = work()
        return self.now() - begin, result

    def median(self, work, n):
        work()
        return statistics.median(self.timed(work)[0] for _ in range(n))

    def emit(self, row, value, unit, **detail):
        if self.rank == 0:
            print(json.dumps(dict(row=row, side="theirs", value=value, unit=unit, gpus=self.size, **detail)), flush=True)

    def reset_peak(self):
        if self.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self):
        if not self.gpu:
            return {}
        return dict(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())


def make_model(name, state, device):
    keep = {k: v for k, v in common.config(name).items() if k not in ("architectures", "model_type", "torch_dtype")}
    keep["rope_parameters"] = dict(rope_type="default", rope_theta=keep.pop("rope_theta"))
    keep.pop("rope_scaling")
    config = Qwen3Config(**keep)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    if state == "bf16":
        model.to(torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    with torch.no_grad():
        for p in model.parameters():
            p.to_local().normal_(0, 0.02)
    with device:
        model.model.rotary_emb = Qwen3RotaryEmbedding(config)  # its buffer holds numbers, which meta tensors do not
    return model


def local(x):
    return x.to_local() if hasattr(x, "to_local") else x


class Training:
    def __init__(self, a, ranks):
        self.a, self.ranks = a, ranks
        self.n = common.params_of(common.config(a.model))
        self.model = make_model(a.model, a.state, ranks.device)
        self.label = a.model + ("" if a.state == "bf16" else " fp32 state") + f" on {ranks.size}"
        shape = (a.sequences, a.prompt_tokens + a.response_tokens)
        self.seq = torch.randint(4, self.model.config.vocab_size, shape, device=ranks.device)
        self.advantage = torch.randn(a.sequences, 1, device=ranks.device)
        self.tokens = a.sequences * shape[1]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=ranks.gpu)

    def logprob_of(self, x):
        answers = self.a.response_tokens
        logits = self.model(input_ids=x, logits_to_keep=answers + 1, use_cache=False).logits[:, :-1].float()
        return torch.log_softmax(logits, -1).gather(-1, x[:, -answers:, None])[..., 0]

    def rate(self, work, each, seconds):
        ranks = self.ranks
        ranks.emit(f"{work} {self.label}", each * self.n * self.tokens / seconds / 1e12, "TFLOP/s", seconds=seconds,
                   tokens_per_second=self.tokens / seconds, **ranks.peak())

    def logprob(self):
        parts = self.seq.split(self.a.micro)
        self.model.eval()
        with torch.no_grad():
            self.logprob_of(parts[0])
            self.ranks.reset_peak()
            seconds, old = self.ranks.timed(lambda: torch.cat([self.logprob_of(x) for x in parts]))
        self.rate("log-prob", 2, seconds)
        return old

    def step(self, parts):
        for x, old, advantage in parts:
            ratio = torch.exp(self.logprob_of(x) - old)
            loss = torch.max(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage).mean() / len(parts)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def update(self, old):
        a, ranks = self.a, self.ranks
        self.model.train()
        parts = list(zip(self.seq.split(a.micro), old.split(a.micro), self.advantage.split(a.micro)))
        self.step(parts[:2])  # warm-up: moments are made, kernels chosen
        ranks.reset_peak()
        seconds, _ = ranks.timed(lambda: self.step(parts))
        self.rate("update", 6, seconds)
        used = ranks.peak()
        if used:
            ranks.emit(f"peak a GPU {self.label}, GB", used["allocated"] / 1e9, "GB", reserved_gb=used["reserved"] / 1e9)
            ranks.emit(f"reserved over allocated {self.label}", used["reserved"] / used["allocated"], "", **used)
        ranks.reset_peak()

    def gather(self):
        """All weights in bf16 on every GPU, one after another: each parameter as a whole, and FSDP's own buffers of a
        layer, which are laid out as they are sent; the faster counts."""
        def whole():
            for p in self.model.parameters():
                p.detach().to(torch.bfloat16).full_tensor()

        def unsharded():
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()
                    module.reshard()
        ways = {}
        for name, work in (("full_tensor", whole), ("unshard", unsharded)):
            with torch.no_grad():
                ways[name] = self.ranks.median(work, 5) * 1e3
        self.ranks.emit(f"gather of all weights {self.label}, bf16", min(ways.values()), "ms", bytes=2 * self.n, **ways)

    def copies(self):
        """Training state to host memory and back on all GPUs at once: into memory that is new, and then again."""
        a, ranks = self.a, self.ranks
        state = [local(p.detach()) for p in self.model.parameters()]
        state += [local(x) for s in self.optimizer.state.values() for x in s.values() if torch.is_tensor(x) and x.numel() > 1]
        taken, size = [], 0
        for x in state:
            if size < a.copy_gb * 1e9:
                taken.append(x)
                size += x.numel() * x.element_size()
        new, host = ranks.timed(lambda: [x.to("cpu") for x in taken])
        again, _ = ranks.timed(lambda: [h.copy_(x) for h, x in zip(host, taken)])
        ranks.emit(f"offload on all ranks: {self.label}", size / again / 1e9, "GB/s", bytes=size, how="pageable",
                   new_memory=size / new / 1e9)
        back, _ = ranks.timed(lambda: [x.copy_(h) for h, x in zip(host, taken)])
        ranks.emit(f"load on all ranks: {self.label}", size / back / 1e9, "GB/s", bytes=size, how="pageable")
        if ranks.gpu:
            self.pinned_copies()

    def pinned_copies(self):
        """What the host's memory and links give all GPUs at once: plain copies of pinned memory, one way and both."""
        ranks, size = self.ranks, int(self.a.copy_gb * 1e9 / 4)
        host = [torch.zeros(size, dtype=torch.uint8).pin_memory() for _ in range(2)]
        device = [torch.zeros(size, dtype=torch.uint8, device=ranks.device) for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in range(2)]

        def copy(ways):
            for way in ways:
                with torch.cuda.stream(streams[way]):
                    to, source = (device, host) if way else (host, device)
                    to[way].copy_(source[way], non_blocking=True)
        for name, ways in (("out", [0]), ("in", [1]), ("both ways, each", [0, 1])):
            seconds = ranks.median(lambda: copy(ways), 3)
            ranks.emit(f"pinned copies {name}, on {ranks.size}", size / seconds / 1e9, "GB/s", bytes=size)


def train(a):
    ranks = Ranks()
    training = Training(a, ranks)
    training.update(training.logprob())
    training.gather()
    training.copies()
    dist.destroy_process_group()


def launch(argv, a):
    """One process a GPU, which imports what it needs and then waits for its arguments."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(a.gpus))
    children = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *argv], env=dict(env, RANK=str(r), LOCAL_RANK=str(r)),
                                 stdin=subprocess.PIPE, text=True) for r in range(a.gpus)]
    line = sys.stdin.readline() if a.work == "wait" else json.dumps(argv) + "\n"
    for c in children:
        if line:
            c.stdin.write(line)
        c.stdin.close()
    while any(c.poll() is None for c in children):
        if any(c.poll() for c in children):  # the others would wait for it
            for c in children:
                c.kill()
        time.sleep(0.1)
    return max(abs(c.returncode) for c in children)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("work", choices=["train", "wait"])
    p.add_argument("model", nargs="?", default="8B")
    p.add_argument("--gpus", type=int, default=2)
    p.add_argument("--state", choices=["bf16", "fp32"], default="fp32")
    p.add_argument("--sequences", type=int, default=64, help="on each GPU")
    p.add_argument("--micro", type=int, default=8, help="sequences of a micro-batch")
    p.add_argument("--prompt-tokens", type=int, default=256)
    p.add_argument("--response-tokens", type=int, default=512)
    p.add_argument("--copy-gb", type=float, default=8, help="of each rank's training state that is copied")
    a = p.parse_args()
    if "RANK" not in os.environ:
        return launch(sys.argv[1:], a)
    line = sys.stdin.readline()
    if line:
        train(p.parse_args(json.loads(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
