#!/usr/bin/env python3
"""An environment: conversations with a server of OpenEnv, over its WebSocket (reset, step). Needs `websockets` (PyPI).

environment: {command: "python3 graphs/environments/openenv_client.py http://127.0.0.1:8000", in_flight: 64}
A turn is an action: the object of JSON that it holds, or {FIELD: text} with a second argument FIELD. The first observation goes
behind the prompt; FIELD2, a third argument, names the part of observations that the model sees (default: all, as JSON). A field
`reset` of a record holds the arguments of its reset. Rewards of steps add up. docs/ENVIRONMENTS.md.
"""
import asyncio
import json
import re
import sys

import websockets

URL, FIELD, SEEN = (sys.argv[1:] + [None, None])[:3]
sockets = {}


def text_of(observation):
    return str(observation.get(SEEN, "")) if SEEN else json.dumps(observation)


async def ask(socket, kind, data):
    await socket.send(json.dumps({"type": kind, "data": data}))
    reply = json.loads(await socket.recv())
    if reply["type"] == "error":
        raise RuntimeError(json.dumps(reply["data"]))
    return reply["data"]


def action_of(text):
    if FIELD:
        return {FIELD: text}
    found = re.search(r"\{.*\}", text, re.DOTALL)
    return json.loads(found[0] if found else text)


async def answer(m):
    if m["type"] == "start":
        sockets[m["id"]] = await websockets.connect(re.sub("^http", "ws", URL) + "/ws", max_size=1 << 22)
        said = await ask(sockets[m["id"]], "reset", m["record"].get("reset") or {})
        return {"text": text_of(said["observation"])}
    try:
        action = action_of(m["text"])
    except ValueError as e:  # the model may do better next time
        return {"text": f"This is no action: {e}"}
    said = await ask(sockets[m["id"]], "step", action)
    return {"text": text_of(said["observation"]), "done": bool(said.get("done")), "reward": float(said.get("reward") or 0)}


async def told(m):
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
            tasks.add(task := asyncio.create_task(told(m)))
        task.add_done_callback(tasks.discard)


asyncio.run(main())
