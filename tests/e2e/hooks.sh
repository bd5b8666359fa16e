#!/bin/sh
# Commands behind events (`on:`) and workers of trackers (`log:`): what they are told, that they have their time, and that
# whatever they do the run goes on, with the same bits. A worker of these packages is tried by tests/oracle/try_trackers.py.
. "$(dirname "$0")/lib.sh"

sed 's/run: .*/run: {steps: 4, seed: 7, checkpoint: {every: 2, best: reward_mean, keep: 1}}/' grpo.yaml >plain.yaml
sed 's/^params: {/&project: p, /' plain.yaml >hooked.yaml
cat >>hooked.yaml <<'END'
log:
  wandb: {project: $project, tags: [a, b], group: "$$name"}
  mlflow: {tracking_uri: "file:mlruns"}
on:
  checkpoint: ["echo $1 $2 $(basename $3) >>events", "exit 3"]
  best: sleep 30
  stop: ls $3/checkpoints >at_end; echo $1 $2 $(basename $3) >>events
  failure: echo "$1 $4" >>events
  timeout: 1
END
# In place of Python, which is handed the worker's script: keeps what it reads.
cat >python <<'END'
#!/bin/sh
[ "$2" != mlflow ] || { read -r line; echo "no server"; exit 4; }
cat >told
END
chmod +x python
status 0 "$gr" exec plain.yaml --out plain
GRAPHRUN_PYTHON=$work/python status 0 "$gr" exec hooked.yaml --out hooked
same_metrics plain hooked
same_weights plain hooked
has events '^checkpoint 2 step-2$'
has events '^checkpoint 4 step-4$'
has events '^stop 4 hooked$'
has at_end '^step-4$'
lacks events failure
cat out err >said
has said "hooked.yaml:[0-9]+:[0-9]+: warning: the command of 'on: checkpoint' at iteration 2 ended with status 3: exit 3"
has said "the command of 'on: best' at iteration [0-9]+ took longer than its timeout, and was ended: sleep 30"
has said "the worker of 'log: mlflow' ended with status 4|the worker of 'log: mlflow' (reads no more|failed at the end)"
has hooked/log.mlflow.txt 'no server'
# The first line says what runs, the others are those of metrics.jsonl.
head -n 1 told >first
has first '"tracker": "wandb", "settings": \{"group":"\$name","project":"p","tags":\["a","b"\]\}, "run": "hooked", "graph": "'
tail -n +2 told >lines
cmp lines hooked/metrics.jsonl || fail "the worker was told other lines"
# The resolved graph has them, and a run that goes on has them again; one without a worker only says so.
: >told
GRAPHRUN_PYTHON=$work/python status 0 "$gr" exec --resume hooked --steps 5
has told '"group":"\$name".*"step": 4, "steps": 5'
tail -n 1 hooked/metrics.jsonl >last
tail -n 1 told | cmp - last || fail "a resumed run tells something else"
GRAPHRUN_PYTHON=/nowhere/python status 0 "$gr" exec --resume hooked --steps 6
# A failure is told with its words, and is the run's own.
rm events
sed -e '/best: sleep/d' -e 's/reward: *{op: reward.*/reward: {op: reward, of: rollout, command: "read x; exit 1"}/' hooked.yaml >fails.yaml
status 1 "$gr" exec fails.yaml --out fails
has events '^failure .*reward worker'
lacks events '^stop'

# Parts that the file does not have are added by --set.
status 0 "$gr" exec plain.yaml --set run.steps=1 --set on.timeout=9 --set 'on.stop=echo $1 >by_set' --out by-set
has by_set '^stop$'

refuse() { # PATTERN LINE
    { cat plain.yaml; echo "$2"; } >bad.yaml
    refused "bad.yaml:[0-9]+:[0-9]+: error: $1" "$gr" check bad.yaml
}
refuse "'wandbb' of 'log' is a map: so are wandb and mlflow; did you mean 'wandb'" 'log: {wandbb: {project: p}}'
refuse "unknown key 'chekpoint' .*did you mean 'checkpoint'" 'on: {chekpoint: "true"}'
refuse "'stop' .*text" 'on: {stop: {a: b}}'
refuse "'timeout' must be a number" 'on: {stop: "true", timeout: soon}'
