# Sourced behind tests/e2e/lib.sh: the folders `start`, two graphs; `ran`, these and what a run and plans of them have made;
# `kept`, what a run may leave beside what it should.

# The tiny graph with all that touches files and processes: data by a command, a worker, a validation, the best.
head -n 24 train.jsonl >few && mv few train.jsonl
head -n 4 train.jsonl >test.jsonl
cat >count.sh <<'END'
while read -r line; do
    id=${line#*\"id\":}
    text=${line#*\"response\":\"}
    text=${text%%\"*}
    printf '{"id": %d, "score": %d}\n' "${id%%[,\}]*}" ${#text}
done
END
mkdir start
sed "s#model: model, data: train.jsonl#model: $work/model, data: $work/train.jsonl#; s/, schedule: cosine//
     s#^  score: .*#  counted: {op: reward, of: rollout, command: \"sh $work/count.sh\"}\n  score: {op: compute, expr: reward + 0.1 * counted}#
     s#file: \$data, batch: 8#command: \"cat $work/train.jsonl\", batch: 4#; /^run:/d" grpo.yaml >start/rich.yaml
cat >>start/rich.yaml <<END
  check_prompts: {op: prompts, file: $work/test.jsonl, batch: 4, max_tokens: 8, template: "{question}", every: 1}
  check: {op: generate, model: actor, prompts: check_prompts, samples: 2, max_tokens: 6}
  digits: {op: reward, of: check, answer: check_prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
run: {steps: 2, seed: 7, samples: 2, checkpoint: {every: 1, keep: 1, best: val.digits}}
END
sed "s#model: model, data: train.jsonl#model: $work/model, data: $work/train.jsonl#; s/, schedule: cosine//
     s/^run:.*/run: {steps: 2, seed: 7, samples: 2, checkpoint: {every: 1}}/" grpo.yaml >start/plain.yaml

status 0 "$gr" exec start/rich.yaml --set run.checkpoint.keep=9 --out kept/run # what may be there before it is pruned
sed -i 's/keep: 9/keep: 1/' kept/run/graph.yaml kept/run/plan.json kept/run/checkpoints/step-*/graph.yaml kept/run/checkpoints/step-*/plan.json
mkdir ran && cp start/* ran && cd ran
status 0 "$gr" exec plain.yaml --out run
status 0 "$gr" plan plain.yaml --format json -o a.json
status 0 "$gr" plan rich.yaml --format json -o b.json
rm out err
cd ..
