"""The worker graphrun-log against the packages themselves, without a network: a run with wandb (offline) and mlflow (a
folder), resumed once; what both have of it is what metrics.jsonl has.

    pip install wandb mlflow-skinny && python tests/oracle/try_trackers.py build/tools/graphrun
"""
import glob
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
graphrun = str(Path(sys.argv[1]).resolve())
folder = Path(tempfile.mkdtemp())
os.environ.update(GRAPHRUN_PYTHON=sys.executable, WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_ALLOW_FILE_STORE="true")

(folder / "data.jsonl").write_text("".join(json.dumps({"question": f"{i}+{i}=", "answer": str(2 * i)}) + "\n" for i in range(16)))
(folder / "graph.yaml").write_text(f"""
graph: trackers
params: {{project: tried}}
models: {{actor: {{checkpoint: {ROOT}/graphs/quickstart/config.json, train: {{lr: 1.0e-3}}}}}}
nodes:
  prompts: {{op: prompts, file: data.jsonl, batch: 4, max_tokens: 8, template: "{{question}}"}}
  rollout: {{op: generate, model: actor, prompts: prompts, samples: 4, max_tokens: 4}}
  reward: {{op: compute, expr: rollout.length + 0.0}}
  advantage: {{op: compute, expr: reward - group_mean(reward)}}
  update: {{op: update, model: actor, of: rollout, loss: -token_mean(advantage * logprob)}}
log:
  wandb: {{project: $project, tags: [offline]}}
  mlflow: {{tracking_uri: "file:{folder}/mlruns", experiment: tried}}
run: {{steps: 3, seed: 1}}
""")


def run(*arguments):
    done = subprocess.run([graphrun, "exec", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    said = [x for x in (done.stdout + done.stderr).splitlines() if "worker of" in x]
    for name in ("wandb", "mlflow"):
        if said:
            print((folder / f"run/log.{name}.txt").read_text())
    assert not said, said


run("graph.yaml", "--out", "run", "--device", "cpu")
run("--resume", "run", "--steps", "5", "--device", "cpu")
lines = [json.loads(x) for x in (folder / "run/metrics.jsonl").read_text().splitlines()]
names = [k for k in lines[0] if k != "step" and isinstance(lines[0][k], (int, float))]
assert [x["step"] for x in lines] == [1, 2, 3, 4, 5] and len(names) > 10

from mlflow.tracking import MlflowClient  # noqa: E402

client = MlflowClient(f"file:{folder}/mlruns")
runs = client.search_runs([client.get_experiment_by_name("tried").experiment_id])
assert len(runs) == 1, "a resumed run is one run"
assert runs[0].data.params["graph"] == "trackers" and runs[0].data.params["seed"] == "1"
for name in names:
    points = {p.step: p.value for p in client.get_metric_history(runs[0].info.run_id, name)}
    assert points == {x["step"]: x[name] for x in lines if x[name] is not None}, name
print(f"mlflow: {len(names)} metrics of 5 iterations in one run")

from wandb.proto import wandb_internal_pb2  # noqa: E402


def records(path):
    """Of an offline run: a header of 7 bytes, and the records of a LevelDB log, in blocks of 32 KiB."""
    data, at, whole = Path(path).read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        whole += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # all of it, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


points, ids, tags, projects = {}, set(), set(), set()
for path in sorted(glob.glob(str(folder / "run/wandb/offline-run-*/run-*.wandb"))):
    for record in records(path):
        if record.WhichOneof("record_type") == "run":
            ids.add(record.run.run_id)
            projects.add(record.run.project)
            tags.update(record.run.tags)
        if record.WhichOneof("record_type") == "history":
            items = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            points[int(items["_step"])] = items
assert len(ids) == 1 and "offline" in tags and "tried" in projects, (ids, tags, projects)
for line in lines:
    for name in names:
        assert math.isclose(points[line["step"]][name], line[name], rel_tol=1e-12), (line["step"], name)
print(f"wandb: {len(names)} metrics of 5 iterations in one run")
