"""check, plan and run as a user of the package calls them."""
import gc
import json
import subprocess
import sys
import threading

import graphrun
import numpy as np
import pytest


def digits(batch):
    return [float(r[:1].isdigit()) for r in batch.responses]


def test_check_has_all_errors_with_their_places(graph):
    bad = graph(rule="exat")
    bad["nodes"]["advantage"]["expr"] = "reward - group_avg(reward)"
    with pytest.raises(graphrun.GraphError) as caught:
        graphrun.check(bad)
    messages = [m for m in caught.value.messages if m.severity == "error"]
    assert len(messages) >= 2
    assert all(m.file == "graph" and m.line and m.col for m in messages)
    assert '"rule": "exat"' in str(caught.value)  # the line itself
    assert graphrun.check(graph(rule="exact")) == []


def test_check_reads_files_and_settings(graph, tmp_path):
    path = tmp_path / "graph.yaml"
    path.write_text(graphrun._graph_file(graphrun._plain(graph(rule="exact"), {})))
    assert graphrun.check(path, set={"lr": 2e-4, "nodes.rollout.samples": 2}) == []
    with pytest.raises(graphrun.GraphError, match="sampels"):
        graphrun.check(path, set={"nodes.rollout.sampels": 2})
    with pytest.raises(graphrun.GraphError, match="nowhere.yaml"):
        graphrun.check("nowhere.yaml")


def test_a_missing_file_is_a_warning(graph):
    absent = graph(rule="exact")
    absent["nodes"]["prompts"]["file"] = "/nowhere/data.jsonl"
    with pytest.warns(graphrun.Warned, match="/nowhere/data.jsonl"):
        assert [m.severity for m in graphrun.check(absent)] == ["warning"]


def test_a_plan_says_what_the_program_says(graph):
    plan = graphrun.plan(graph(rule="exact"), device="cpu")
    said = json.loads(plan.json())
    assert plan.fits and said["numerics"] == plan.numerics
    assert plan.peak_bytes == plan.arena_bytes + plan.overhead_bytes
    assert max(s.resident_bytes for s in plan.steps[:plan.n_steps]) == plan.steps[plan.peak_step].resident_bytes
    assert plan.roles == [plan] and plan.seconds > 0
    live = [e for e in plan.ledger if e.on_device and e.first <= plan.peak_step <= e.last]
    assert sum(e.bytes for e in live) <= plan.arena_bytes
    assert "fits" in str(plan)


def test_what_does_not_fit_has_the_smallest_plan_and_advice(graph):
    with pytest.raises(graphrun.DoesNotFit, match="would fit") as caught:
        graphrun.plan(graph(rule="exact"), device="cpu", budget="1MiB")
    assert caught.value.plan is not None and not caught.value.plan.fits


@pytest.mark.parametrize("size", ["80", "1.5GiB", "512 MiB", 4096])
def test_sizes(size):
    assert graphrun._bytes(size) == {"80": 80, "1.5GiB": 3 << 29, "512 MiB": 512 << 20}.get(size, size)


def test_a_size_without_sense_is_refused(graph):
    with pytest.raises(ValueError, match="80GiB, for one"):
        graphrun.plan(graph(rule="exact"), budget="much")


def test_a_run_is_iterated_over(graph, tmp_path):
    means, seen = [], []

    def reward(batch):
        assert len(batch) == 16 and batch.names == [] and not batch.per_token
        assert batch.rows.ids.shape[0] == 16 and batch.rows.group.tolist() == [i // 4 for i in range(16)]
        assert [str(3 * int(r["question"].split("+")[0])) for r in batch.records] == batch.answers
        assert all(p.endswith("=") for p in batch.prompts)
        assert (batch.rows.logprob[:, 0] <= 0).all() and len(batch.rows.response_ids(3)) == batch.rows.response_len[3]
        scores = digits(batch)
        means.append(sum(scores) / 16)
        return scores

    def look(s):
        assert s.levels["advantage"] == "sequence"
        mean = s.columns["reward"].reshape(4, 4).mean(axis=1).repeat(4)
        assert np.allclose(s.columns["advantage"], s.columns["reward"] - mean, atol=1e-6)
        seen.append(s.step)

    told = []
    with graphrun.run(graph(reward), out=tmp_path / "run", device="cpu", watch={"advantage": look},
                      callbacks=[lambda run, it: told.append(it.step)]) as run:
        for it in run:
            assert it["reward_mean"] == pytest.approx(means[-1])
            if it.step == 2:
                run.set("bonus", 2.25)
            assert it["bonus"] == (2.25 if it.step == 3 else 0.5)
    assert told == seen == [1, 2, 3] and run.out == str(tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [x["reward_mean"] for x in lines] == pytest.approx(means)


def test_a_rule_and_a_function_that_does_the_same_have_the_same_bits(graph, tmp_path):
    def exact(batch):
        return [float(r.strip() == a) for r, a in zip(batch.responses, batch.answers)]

    with graphrun.run(graph(exact), out=tmp_path / "a", device="cpu") as a:
        ours = a.finish()
    with graphrun.run(graph(rule="exact"), out=tmp_path / "b", device="cpu") as b:
        theirs = b.finish()
    names = [k for k in ours if "second" not in k and "measured" not in k and ours[k] == ours[k]]
    assert {k: ours[k] for k in names} == {k: theirs[k] for k in names}
    weights = [(tmp_path / x / "checkpoints/step-3/actor/model.safetensors").read_bytes() for x in "ab"]
    assert weights[0] == weights[1]


def test_a_run_stops_and_goes_on(graph, tmp_path):
    out = tmp_path / "run"
    with graphrun.run(graph(digits), out=out, device="cpu") as run:
        next(run)
        run.stop()
        assert next(run, None) is None
    assert (out / "checkpoints/step-1").exists()
    with graphrun.run(resume=out, device="cpu", functions={"digits": digits}) as run:
        assert [it.step for it in run] == [2, 3]
    with pytest.raises(graphrun.GraphError, match="is a function of the program that runs the graph"):
        with graphrun.run(resume=out, steps=4, device="cpu") as run:
            run.finish()


def test_what_a_function_raises_ends_the_run_and_is_the_cause(graph, tmp_path):
    def broken(batch):
        raise KeyError("no such thing")

    run = graphrun.run(graph(broken), out=tmp_path / "run", device="cpu")
    with pytest.raises(graphrun.RunFailed, match="the function 'broken' failed: KeyError") as caught:
        next(run)
    assert isinstance(caught.value.__cause__, KeyError)
    run.close()


@pytest.mark.parametrize("result, says", [
    ([1.0], "scores of shape"), ([float("nan")] * 16, "gave nan for sequence 0"), (None, "gave nan"), ("high", "could not"),
])
def test_scores_that_are_none_are_refused(graph, tmp_path, result, says):
    def reward(batch):
        return result

    with graphrun.run(graph(reward), out=tmp_path / "run", device="cpu") as run:
        with pytest.raises(graphrun.RunFailed, match=says):
            next(run)


def test_a_view_that_is_kept_is_named(graph, tmp_path):
    kept = []

    def hoards(batch):
        kept.append(batch.rows.ids[2:4])
        return digits(batch)

    def copies(batch):
        kept.append(batch.rows.ids.copy())
        kept.append(batch)
        return digits(batch)

    with graphrun.run(graph(hoards), out=tmp_path / "a", device="cpu") as run:
        with pytest.raises(graphrun.RunFailed, match="views of the batch were kept: ids"):
            next(run)
    kept.clear()
    with graphrun.run(graph(copies), out=tmp_path / "b", device="cpu") as run:
        run.finish()
    assert kept[0].shape == kept[2].shape
    with pytest.raises(RuntimeError, match="the batch is over"):
        kept[1].prompts
    with pytest.raises(AttributeError):
        kept[1].rows


def test_views_cannot_be_written(graph, tmp_path):
    def vandal(batch):
        batch.rows.ids[0, 0] = 7

    with graphrun.run(graph(vandal), out=tmp_path / "run", device="cpu") as run:
        with pytest.raises(graphrun.RunFailed, match="read-only"):
            next(run)


def test_names_and_tokens(graph, tmp_path):
    def named(batch):
        assert batch.names == ["right", "short"]
        return {"right": digits(batch), "short": [0.25] * len(batch)}

    def per_token(batch):
        assert batch.per_token
        batch.scores[:] = 0.5

    with graphrun.run(graph(named, names=["right", "short"]), out=tmp_path / "a", device="cpu") as run:
        assert 0.25 <= run.finish()["reward_mean"] <= 1.25
    dense = graph(per_token, level="token")
    dense["nodes"]["advantage"]["expr"] = "reward"
    with graphrun.run(dense, out=tmp_path / "b", device="cpu") as run:
        assert run.finish()["loss"] != 0


def test_an_environment_in_process(graph, tmp_path):
    threads = set()

    def warm(messages):
        threads.add(threading.get_ident())
        replies = []
        for m in messages:
            if m["type"] == "start":
                assert "question" in m["record"]
                replies.append({"id": m["id"]})
            elif m["type"] == "step":
                replies.append({"id": m["id"], "text": "+1=", "reward": 0.5})
        return replies

    talk = graph(**{"from": "environment"})
    del talk["nodes"]["reward"]["answer"]
    talk["nodes"]["rollout"].update(turns=3, max_context=48, environment={"function": warm})
    with graphrun.run(talk, out=tmp_path / "run", device="cpu") as run:
        it = next(run)
        assert it["reward_mean"] == pytest.approx(it["rollout.turns_mean"] / 2)
    assert threads and threading.get_ident() not in threads


def test_one_run_at_a_time_and_none_is_left_open(graph, tmp_path):
    run = graphrun.run(graph(digits), out=tmp_path / "a", device="cpu")
    with pytest.raises(graphrun.GraphError, match="one at a time"):
        graphrun.run(graph(digits), out=tmp_path / "b", device="cpu")
    next(run)
    del run
    gc.collect()
    assert (tmp_path / "a/checkpoints/step-1").exists()  # it stopped as it should
    graphrun.run(graph(digits), out=tmp_path / "c", device="cpu").close()


def test_what_cannot_be_set_is_refused(graph, tmp_path):
    with graphrun.run(graph(digits), out=tmp_path / "run", device="cpu") as run:
        with pytest.raises(graphrun.GraphError, match="no iteration has run yet"):
            run.set("bonus", 1)
        next(run)
        with pytest.raises(graphrun.GraphError, match="no state 'bonuss'; did you mean 'bonus'"):
            run.set("bonuss", 1)
    with pytest.raises(ValueError, match="closed"):
        run.set("bonus", 1)


def test_commands_of_a_graph_are_started(graph, tmp_path):
    """By way of the program graphrun: Python is none of its guards."""
    worker = tmp_path / "worker.py"
    worker.write_text("import json, sys\nfor line in sys.stdin:\n"
                      "    print(json.dumps({'id': json.loads(line)['id'], 'score': 0.75}), flush=True)\n")
    with graphrun.run(graph(command=f"{sys.executable} {worker}"), out=tmp_path / "run", device="cpu") as run:
        assert next(run)["reward_mean"] == 0.75


def test_the_library_leaves_signals_and_output_alone(graph, tmp_path):
    program = ("import json, signal, sys, graphrun\n"
               "before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]\n"
               "def reward(batch): return [1.0] * len(batch)\n"
               "graph = json.load(open(sys.argv[1]))\n"
               "with graphrun.run(graph, out=sys.argv[2], device='cpu', functions={'reward': reward}) as run:\n"
               "    run.finish()\n"
               "assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]\n")
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph(function="reward"), default=str))
    done = subprocess.run([sys.executable, "-c", program, path, tmp_path / "run"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
