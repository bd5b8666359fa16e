#!/bin/sh
# The worker that asks python's math-verify: what it answers, and a run that it rewards. GR_PYTHON names a Python that
# has math-verify.
. "$(dirname "$0")/lib.sh"
python=${GR_PYTHON:-python3}
worker=$project/graphs/workers/math_verify_worker.py

# Without math-verify the worker ends and says what it needs.
status 1 "$python" -S -E "$worker" </dev/null
has err 'needs math-verify: pip install math-verify'

"$python" -c 'import math_verify' 2>/dev/null || { echo "skipped: $python has no math-verify" >&2; exit 77; }

cat >requests <<'END'
{"id": 3, "prompt": "", "response": "So it is $\\boxed{\\frac{3}{6}}$.", "answer": "0.5"}
{"id": 4, "prompt": "", "response": "The answer is $x^2+2x+1$.", "answer": "(x+1)^2"}
{"id": 5, "prompt": "", "response": "The answer is $x^2+2x+2$.", "answer": "(x+1)^2"}
{"id": 6, "prompt": "", "response": "", "answer": "$[1,2]$"}
{"id": 7, "prompt": "", "response": "$z \\in [-\\frac{3}{2}, -1] \\cup [1, \\frac{3}{2}]$", "answer": "$1 \\leq |z| \\leq \\frac{3}{2}$"}
END
status 0 "$python" "$worker" <requests
cat >want <<'END'
{"id": 3, "score": 1}
{"id": 4, "score": 1}
{"id": 5, "score": 0}
{"id": 6, "score": 0}
{"id": 7, "score": 1}
END
cmp out want || { cat out >&2; fail "other scores"; }

echo '{"id": 1, "response": "5"}' >requests
status 1 "$python" "$worker" <requests
has err "a record has no answer"

sed "s|^  reward: .*|  reward: {op: reward, of: rollout, answer: prompts.answer, command: \"$python $worker\", timeout: 60}|" \
    grpo.yaml >verified.yaml
status 0 "$gr" exec verified.yaml --set run.steps=1 --out verified
[ -s verified/samples.jsonl ] || fail "no samples"
