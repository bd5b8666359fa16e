#!/usr/bin/env python3
"""An environment that opens its conversations: a lock with a number of two digits, which a model may try.

It brings the first message and the tool, so the graph needs neither: `environment: {command: ..., opens: true}`. Each try is told
whether the number is higher or lower; the lock that opens pays 1. docs/ENVIRONMENTS.md.
"""
import json
import sys

TRY = {"type": "function", "function": {"name": "try", "description": "Tries a number on the lock.", "parameters": {
    "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}}}
numbers = {}


def start(m):
    numbers[m["id"]] = int(m["record"]["answer"]) % 100
    return {"messages": [{"role": "user", "content": "Open the lock. Its number is from 0 to 99."}], "tools": [TRY]}


def tried(call, number):
    guess = call.get("arguments", {}).get("number")
    if call.get("name") != "try" or not isinstance(guess, int):
        return call.get("error", "The tool is try, with a number.")
    return "It opens." if guess == number else "It is higher." if guess < number else "It is lower."


def step(m):
    said = [tried(c, numbers[m["id"]]) for c in m["tool_calls"]]
    if "It opens." in said or m["last"] or not said:
        return {"done": True, "reward": float("It opens." in said), "metrics": {"tries": len(said)}}
    return {"messages": [{"role": "tool", "content": x} for x in said], "metrics": {"tries": len(said)}}


for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "end":
        numbers.pop(m["id"], None)
    else:
        print(json.dumps({"id": m["id"], **(start(m) if m["type"] == "start" else step(m))}), flush=True)
