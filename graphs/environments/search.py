#!/usr/bin/env python3
"""An environment: a model may search a table before it answers, a row at a time.

The record has a "table", an object of texts. A call of a tool {"name": "search", "arguments": {"key": "b"}}, or a turn that
is a key of it and nothing else, gets what stands there; any other turn is the answer. docs/ENVIRONMENTS.md.
"""
import json
import sys

records = {}


def step(m):
    record, calls, said = records[m["id"]], m["tool_calls"], m["text"].strip()
    metrics = {"searches": len(calls) or int(said in record["table"])}
    if m["last"] or not metrics["searches"]:
        return {"done": True, "reward": float(said == str(record["answer"]) and not calls)}
    if not calls:
        return {"text": record["table"][said] + ".", "metrics": metrics}
    found = [c.get("error") or record["table"].get(str(c["arguments"].get("key")), "nothing is there") for c in calls]
    return {"messages": [{"role": "tool", "content": x} for x in found], "metrics": metrics}


for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "start":
        records[m["id"]] = m["record"]
    if m["type"] == "end":
        records.pop(m["id"], None)
    else:
        print(json.dumps({"id": m["id"], **({} if m["type"] == "start" else step(m))}), flush=True)
