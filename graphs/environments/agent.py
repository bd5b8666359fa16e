#!/usr/bin/env python3
"""A harness: it brings its own loop and calls the rollout for each turn of the model, as an agent calls any endpoint of OpenAI's
form. Here the agent has a calculator; the answer behind its last call is right or not. docs/ENVIRONMENTS.md, "Serving"."""
import json
import re
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

TOOL = {"type": "function", "function": {"name": "calculator", "description": "Computes a + b, a - b or a * b.", "parameters": {
    "type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}
TURNS, lock = 4, threading.Lock()


def call(start, messages):
    body = {"model": start["model"], "messages": messages, "tools": [TOOL]}
    request = urllib.request.Request(start["url"] + "/chat/completions", json.dumps(body).encode(),
                                     {"Authorization": "Bearer " + start["token"], "Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]


def compute(expression):
    m = re.fullmatch(r"\s*(-?\d{1,18})\s*([-+*])\s*(-?\d{1,18})\s*=?\s*", str(expression))
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[m[2]](int(m[1]), int(m[3]))) if m else "cannot compute this"


def session(start):
    messages, calls = [{"role": "user", "content": start["record"]["question"]}], 0
    for _ in range(TURNS):
        messages.append(call(start, messages))
        asked = messages[-1].get("tool_calls") or []
        if not asked:
            break
        for c in asked:
            expression = json.loads(c["function"]["arguments"]).get("expression")
            messages.append({"role": "tool", "tool_call_id": c["id"], "content": compute(expression)})
        calls += len(asked)
    right = re.findall(r"-?\d+", messages[-1].get("content") or "")[-1:] == [str(start["record"]["answer"])]
    return {"reward": float(right and messages[-1]["role"] == "assistant"), "metrics": {"calls": calls}}


def run(start):
    try:
        end = session(start)
    except urllib.error.HTTPError as e:  # no room, or no turn more: what there is counts
        refused = e.code == 400 and re.search("context_length|turns_exceeded", e.read().decode())
        end = {"reward": 0.0} if refused else {"error": f"HTTP status {e.code}"}
    except Exception as e:
        end = {"error": repr(e)}
    with lock:
        print(json.dumps({"id": start["id"], **end}), flush=True)


with ThreadPoolExecutor(256) as pool:
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "start":
            pool.submit(run, message)
