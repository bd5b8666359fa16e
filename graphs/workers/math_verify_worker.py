#!/usr/bin/env python3
"""A worker for `command:` rewards: python's math-verify, with sympy behind it, says whether a response is right.

    reward: {op: reward, of: rollout, answer: prompts.answer, command: "python3 graphs/workers/math_verify_worker.py", workers: 8}

`rule: math` needs no Python, is a thousand times faster and pays fewer wrong answers (docs/GRADERS.md). This worker
is for answers that need computer algebra: integrals and sums as answers, solved systems, inequalities of absolute
values, simplified logic.

It needs `pip install math-verify`. One JSON object a line comes in, {"id", "response", "answer", ...}, and one goes out,
{"id", "score"}: 1 or 0. What takes math-verify longer than its limit of five seconds scores 0.
"""
import json
import sys

try:
    from math_verify import parse, verify
except ImportError:
    sys.exit("math_verify_worker.py: this worker needs math-verify: pip install math-verify")

FENCES = ("$", "\\(", "\\[", "\\boxed")


def truth_of(answer):
    """An answer without fences is one formula."""
    text = str(answer)
    return parse(text if any(f in text for f in FENCES) else f"${text}$")


def score(request):
    return 1 if verify(truth_of(request["answer"]), parse(request["response"])) else 0


def main():
    for line in sys.stdin:
        request = json.loads(line)
        if "answer" not in request:
            sys.exit("math_verify_worker.py: a record has no answer; name it with the key 'answer' of the reward node")
        print(json.dumps({"id": request["id"], "score": score(request)}), flush=True)


main()
