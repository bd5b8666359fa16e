"""Sessions of verifiers against a rollout that serves: its own ToolEnv and three of its clients drive the endpoint, and every id in the
rows that train is what a client was told.

Usage: python tests/oracle/verifiers_serve.py GRAPHRUN [SESSIONS]       needs verifiers 0.1.14 (PyPI) and libmicrohttpd

A small model learns to call a tool `add`, so that sessions have calls of tools, some of them malformed. Then GRPO runs over sessions:
this script is also the harness (--harness), in which `ToolEnv.rollout` makes the calls with the client of chat completions, the
one of token ids (/v1/chat/completions/tokens, /tokenize) or NeMo's (ids within messages), and the reward worker (--rows), which
writes down the tokens of each row. Compared: the context of each session's last call and what was sampled to it with the row, id by
id; which of the row's tokens count with what was sampled, and log-probs with those that clients were told, in sums.
"""
import asyncio
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
PROJECT = HERE.parent.parent.parent
CLIENTS = ["openai_chat_completions", "openai_chat_completions_token", "nemorl_chat_completions"]
TEMPLATE = ("{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{% for c in m['tool_calls'] %}<tool_call>{{ c['function'] | tojson }}"
            "</tool_call>{% endfor %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
TURNS = 3


def call_of(a, b):
    return '<tool_call>{"name": "add", "arguments": {"a": %d, "b": %d}}</tool_call>' % (a, b)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def harness():
    import datasets
    import verifiers as vf
    from verifiers.types import ClientConfig

    env = vf.ToolEnv(tools=[add], max_turns=TURNS, dataset=datasets.Dataset.from_list([{"question": "1+1", "answer": "2"}]),
                     rubric=vf.Rubric())
    log = open("sessions.jsonl", "a")

    async def session(start):
        os.environ["TOKEN"] = start["token"]
        kind = CLIENTS[start["id"] % len(CLIENTS)]
        config = ClientConfig(client_type=kind, api_key_var="TOKEN", api_base_url=start["url"], max_retries=0, connect_timeout=100)
        from verifiers.clients import resolve_client
        client = resolve_client(config)
        question = {"role": "user", "content": start["record"]["question"]}
        state = await env.rollout({"prompt": [question], "example_id": 0, "answer": start["record"]["answer"]}, client,
                                  start["model"], {"logprobs": True, "extra_body": {"return_token_ids": True, "return_tokens_as_token_ids": True}})
        error = state.get("error")
        steps = [s["tokens"] for s in state["trajectory"]]
        print(json.dumps({"number": start["id"] % 2 ** 24, "client": kind, "steps": [
            {"prompt": s["prompt_ids"], "said": s["completion_ids"], "logprobs": s["completion_logprobs"]} for s in steps],
            "error": repr(error) if error else None, "calls": sum(len(m.tool_calls or []) for s in state["trajectory"] for m in s["completion"])}),
            file=log, flush=True)
        last = state["trajectory"][-1]["completion"][-1].content or "" if steps else ""
        print(json.dumps({"id": start["id"], "reward": float(start["record"]["answer"] in last)}), flush=True)

    async def told(start):
        try:
            await session(start)
        except Exception as e:
            print(json.dumps({"id": start["id"], "error": repr(e)}), flush=True)

    loop, tasks = asyncio.get_running_loop(), set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        message = json.loads(line)
        if message["type"] == "start":
            tasks.add(asyncio.create_task(told(message)))


def rows():
    log = open("rows.jsonl", "a")
    for line in sys.stdin:
        m = json.loads(line)
        print(json.dumps({"tokens": m["tokens"]}), file=log, flush=True)
        print(json.dumps({"id": m["id"], "score": 0}), flush=True)


def run(*command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}")
    return done.stdout


def write_data():
    rng = random.Random(1)
    with open("examples.jsonl", "w") as warm, open("questions.jsonl", "w") as data:
        for i in range(4000):
            a, b = rng.randrange(1, 50), rng.randrange(1, 50)
            begin = f"user:{a}+{b}=Eassistant:"
            if i % 2:
                begin += f"{call_of(a, b)}Etool:{a + b}Eassistant:"
            said = str(a + b) if i % 2 else call_of(a, b)
            print(json.dumps({"prompt": begin, "response": said}), file=warm)
            print(json.dumps({"question": f"{a}+{b}=", "answer": str(a + b)}), file=data)


WARM = """graph: warm
models: {actor: {checkpoint: start, train: {optimizer: adamw, lr: 4.0e-3, warmup: 10, grad_clip: 1.0}}}
nodes:
  examples: {op: sequences, file: examples.jsonl, batch: 32, prompt: "{prompt}", response: "{response}", max_prompt_tokens: 140, max_tokens: 80}
  update: {op: update, model: actor, of: examples, loss: "-token_mean(logprob)"}
run: {steps: 200, seed: 1}
"""
GRPO = """graph: served
models: {actor: {checkpoint: warm-model, train: {optimizer: adamw, lr: 1.0e-4, grad_clip: 1.0}}}
nodes:
  prompts: {op: prompts, file: questions.jsonl, batch: 16, template: "{question}", max_tokens: 16}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 8, temperature: 1.0, max_tokens: 72, turns: TURNS, max_context: 250,
            environment: {command: "HARNESS", timeout: 120s, retries: 0}, serve: {port: 0}}
  reward: {op: reward, of: rollout, from: environment}
  rows: {op: reward, of: rollout, command: "ROWS", in_flight: 64}
  old_logprob: {op: logprob, model: actor, of: rollout}
  advantage: {op: compute, expr: (reward - group_mean(reward)) / (group_std(reward) + 1e-6)}
  update: {op: update, model: actor, of: rollout, loss: "-token_mean(advantage * exp(logprob - old_logprob))"}
log: {rows: batch_mean(rows), ids: batch_sum(seq_sum(rollout.token)), n: batch_sum(seq_count(rollout.model)), told: batch_sum(seq_sum(rollout.logprob))}
run: {steps: STEPS, seed: 7, samples: 4}
"""


def prepare(graphrun):
    config = json.loads((PROJECT / "tests/cli/model/config.json").read_text())
    tokenizer = json.loads((PROJECT / "tests/cli/model/tokenizer_config.json").read_text())
    config.update(max_position_embeddings=256, hidden_size=64, intermediate_size=128)
    os.makedirs("tokenizer")
    tokenizer.update(chat_template=TEMPLATE, model_max_length=256)
    pathlib.Path("tokenizer/tokenizer_config.json").write_text(json.dumps(tokenizer))
    pathlib.Path("config.json").write_text(json.dumps(config))
    run(graphrun, "init", "--config", "config.json", "--tokenizer", "tokenizer", "--seed", 1, "-o", "start")
    write_data()
    pathlib.Path("warm.yaml").write_text(WARM)
    run(graphrun, "exec", "warm.yaml", "--out", "warm")
    run(graphrun, "export", "warm", "-o", "warm-model")


def check(steps):
    sessions = [json.loads(line) for line in open("sessions.jsonl")]
    tokens = sorted(json.loads(line)["tokens"] for line in open("rows.jsonl"))
    metrics = [json.loads(line) for line in open("run/metrics.jsonl")]
    bad = [s["error"] for s in sessions if s["error"] and "overlong" not in s["error"].lower()]
    ends = sorted((s["steps"][-1]["prompt"] + s["steps"][-1]["said"])[1:] for s in sessions)
    for s in sessions:
        for a, b in zip(s["steps"], s["steps"][1:]):
            assert b["prompt"][:len(a["prompt"]) + len(a["said"])] == a["prompt"] + a["said"], "a call does not continue the one before"
    said = [t for s in sessions for t in s["steps"]]
    n, ids = sum(len(t["said"]) for t in said), sum(sum(t["said"]) for t in said)
    told = sum(sum(t["logprobs"]) for t in said)
    print(f"{len(sessions)} sessions, {len(said)} calls, {n} tokens sampled, {sum(s['calls'] for s in sessions)} calls of tools, {len(bad)} errors {bad[:3]}")
    for kind in CLIENTS:
        mine = [s for s in sessions if s["client"] == kind]
        print(f"  {kind}: {len(mine)} sessions, {sum(len(s['steps']) > 1 for s in mine)} of several turns")
    assert ends == tokens, "a row's ids are not those of its session"
    assert n == sum(m["n"] for m in metrics) and ids == sum(m["ids"] for m in metrics), "what counts is not what was sampled"
    off = abs(told - sum(m["told"] for m in metrics)) / abs(told)
    assert off < 1e-5 and all(m["rollout.failed"] == 0 and m["logprob_gap_max"] == 0 for m in metrics) and not bad, off
    print(f"every id of {len(tokens)} rows is what its session was told; log-probs agree to {off:.1e}")


def main():
    graphrun, sessions = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    steps = (sessions + 127) // 128
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare(graphrun)
        me = f"{sys.executable} {HERE}"
        text = GRPO.replace("HARNESS", f"{me} --harness").replace("ROWS", f"{me} --rows").replace("STEPS", str(steps)).replace("TURNS", str(TURNS))
        pathlib.Path("served.yaml").write_text(text)
        print(run(graphrun, "exec", "served.yaml", "--out", "run").splitlines()[-1])
        check(steps)


if "--harness" in sys.argv:
    asyncio.run(harness())
elif "--rows" in sys.argv:
    rows()
else:
    main()
