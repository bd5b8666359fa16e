#!/usr/bin/env python3
"""A harness: sessions of an environment of `verifiers` (PyPI, 0.1.14), which brings prompts, tools and rewards of its own.

serve: {port: 0}, environment: {command: "python3 graphs/environments/verifiers_agent.py ENVIRONMENT [ARGUMENTS as JSON]"}
The `prompts` node reads the environment's rows, written once by: verifiers_agent.py ENVIRONMENT [ARGUMENTS] --rows >rows.jsonl
docs/ENVIRONMENTS.md, "Serving".
"""
import asyncio
import json
import os
import sys

import verifiers as vf
from verifiers.clients import resolve_client
from verifiers.types import ClientConfig

SAMPLING = {"logprobs": True, "extra_body": {"return_token_ids": True, "return_tokens_as_token_ids": True}}


async def session(env, start):
    os.environ["GRAPHRUN_TOKEN"] = start["token"]
    client = resolve_client(ClientConfig(client_type="openai_chat_completions_token", api_key_var="GRAPHRUN_TOKEN",
                                         api_base_url=start["url"], max_retries=3))
    try:
        state = await env.rollout(start["record"], client, start["model"], SAMPLING)
        await env.rubric.score_rollout(state)
        return {"error": repr(state["error"])} if state.get("error") else {"reward": float(state["reward"] or 0)}
    except Exception as e:  # of one session: the others go on
        return {"error": repr(e)}


async def serve(env):
    async def run(start):
        print(json.dumps({"id": start["id"], **await session(env, start)}), flush=True)

    loop, tasks = asyncio.get_running_loop(), set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if (message := json.loads(line))["type"] == "start":
            tasks.add(task := asyncio.create_task(run(message)))
            task.add_done_callback(tasks.discard)


environment = vf.load_environment(sys.argv[1], **(json.loads(sys.argv[2]) if sys.argv[2:] and sys.argv[2] != "--rows" else {}))
if "--rows" in sys.argv:
    for row in environment.get_dataset():
        print(json.dumps(row))
else:
    asyncio.run(serve(environment))
