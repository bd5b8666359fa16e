#!/usr/bin/env python3
"""An environment: a model may have products, sums and differences computed before it answers.

A call of a tool {"name": "calculator", "arguments": {"expression": "12*34"}}, or a turn that is an expression and
nothing else ("12*34"), gets the result; any other turn is the answer, which is right or not. docs/ENVIRONMENTS.md.
"""
import json
import operator
import re
import sys

OPERATORS, answers = {"+": operator.add, "-": operator.sub, "*": operator.mul}, {}


def result(expression):
    m = re.fullmatch(r"\s*(-?\d{1,18})\s*([-+*])\s*(-?\d{1,18})\s*=?\s*", str(expression))
    return str(OPERATORS[m[2]](int(m[1]), int(m[3]))) if m else None


def step(m):
    calls, alone = m["tool_calls"], result(m["text"])
    metrics = {"calls": len(calls) or int(alone is not None)}
    if m["last"] or not metrics["calls"]:
        number = re.findall(r"-?\d+", m["text"])
        return {"done": True, "reward": float(number[-1:] == [answers[m["id"]]] and not metrics["calls"])}
    if not calls:
        return {"text": alone + ".", "metrics": metrics}
    said = [c.get("error") or result(c["arguments"].get("expression")) or "cannot compute this" for c in calls]
    return {"messages": [{"role": "tool", "content": x} for x in said], "metrics": metrics}


for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "start":
        answers[m["id"]] = str(m["record"]["answer"])
    if m["type"] == "end":
        answers.pop(m["id"], None)
    else:
        print(json.dumps({"id": m["id"], **({} if m["type"] == "start" else step(m))}), flush=True)
