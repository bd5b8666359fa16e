#!/usr/bin/env python3
"""An environment: conversations with a server of OpenEnv, over its WebSocket (reset, step). Needs `websockets` (PyPI).

environment: {command: "python3 graphs/environments/openenv_client.py http://127.0.0.1:8000", in_flight: 64}
A turn is an action: the object of JSON that it holds, or {FIELD: text} with a second argument FIELD. The first observation goes
behind the prompt; FIELD2, a third argument, names the part of observations that the model sees (default: all, as JSON). A field
`reset` of a record holds the arguments of its reset. Rewards of steps add up; numbers of the server's state at the end, such as
step_count, are metrics. With ROLE, a fourth argument, what the model is told are messages of that role, from the first on (`opens:
true` in the graph, and `template: chat`). docs/ENVIRONMENTS.md.
"""
import asyncio
import json
import re
import sys

import websockets

URL, FIELD, SEEN, ROLE = (sys.argv[1:] + [None] * 3)[:4]
sockets = {}


def told(text):
    return {"messages": [{"role": ROLE, "content": text}]} if ROLE else {"text": text}


def seen(observation):
    return told(str(observation.get(SEEN, "")) if SEEN else json.dumps(observation))


async def ask(socket, kind, **data):
    await socket.send(json.dumps({"type": kind, **data}))
    reply = json.loads(await socket.recv())
    if reply["type"] == "error":
        raise RuntimeError(json.dumps(reply["data"]))
    return reply["data"]


def action_of(text):
    if FIELD:
        return {FIELD: text}
    found = re.search(r"\{.*\}", text, re.DOTALL)
    return json.loads(found[0] if found else text)


async def metrics(socket):
    state = await ask(socket, "state")
    return {k: v for k, v in state.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


async def step(m):
    try:
        action = action_of(m["text"])
    except ValueError as e:  # the model may do better next time
        return told(f"This is no action: {e}")
    said = await ask(sockets[m["id"]], "step", data=action)
    return {**seen(said["observation"]), "done": bool(said.get("done")), "reward": float(said.get("reward") or 0)}


async def answer(m):
    if m["type"] == "start":
        sockets[m["id"]] = await websockets.connect(re.sub("^http", "ws", URL) + "/ws", max_size=1 << 22)
        said = await ask(sockets[m["id"]], "reset", data=m["record"].get("reset") or {})
        return seen(said["observation"])
    reply, socket = await step(m), sockets[m["id"]]
    if reply.get("done") or m["last"]:
        reply["metrics"] = await metrics(socket)
    return reply


async def respond(m):
    try:
        reply = await answer(m)
    except Exception as e:
        reply = {"error": repr(e)}
    print(json.dumps({"id": m["id"], **reply}), flush=True)


async def main():
    loop, tasks = asyncio.get_running_loop(), set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        m = json.loads(line)
        if m["type"] == "end":
            if socket := sockets.pop(m["id"], None):
                tasks.add(task := asyncio.create_task(socket.close()))
        else:
            tasks.add(task := asyncio.create_task(respond(m)))
        task.add_done_callback(tasks.discard)


asyncio.run(main())
