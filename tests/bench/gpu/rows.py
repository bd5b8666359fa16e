"""Rows of a benchmark: lines of JSON as they come, a table of the last of each, and PyTorch's side of it.

A line is {"row": ..., "side": "ours" or "theirs", "value": ..., "unit": ..., and what else there is to say}, or one with
"failed", which says why there is no value.
"""
import json
import os
import signal
import subprocess
import sys
import threading
import time

import common

LESS_IS_BETTER = ("iteration", "reserved over allocated", "gather of all", "peak", "resharding")


class Results:
    """Appends to FOLDER/results.jsonl; `bars` has (at least, aim) of a row, or of what is before its first colon."""

    def __init__(self, folder, bars, timeout):
        self.folder, self.bars, self.timeout = folder, bars, timeout
        self.lines = []
        os.makedirs(folder, exist_ok=True)
        self.file = open(os.path.join(folder, "results.jsonl"), "a")

    def emit(self, row, value, unit, side="ours", **detail):
        self.keep(dict(row=row, side=side, value=value, unit=unit, **detail))

    def keep(self, line):
        line["at"] = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        self.lines.append(line)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        print(json.dumps(line), flush=True)

    def found(self, row, side="ours"):
        return next((r["value"] for r in reversed(self.lines) if r["row"] == row and r["side"] == side), None)

    def collect(self, process):
        """Keep what a program prints as lines of JSON, as they come; what else it prints goes to this one's stderr. One that
        takes too long is killed, with all in its group."""
        killer = threading.Timer(self.timeout, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        for line in process.stdout:
            if line.startswith("{"):
                self.keep(json.loads(line))
        status = process.wait()
        killer.cancel()
        if status:
            raise common.Failed(f"status {status}: {' '.join(process.args)}")

    def program(self, *args):
        """Run one that prints lines of JSON."""
        self.collect(start(args))

    def row(self, name, work):
        """One row of the command line: whatever goes wrong in it, the next is another matter."""
        begin = time.time()
        try:
            work(name)
        except Exception as e:
            self.keep(dict(row=name, side="ours", failed=f"{type(e).__name__}: {e}"[:2000], value=None, unit=""))
        with open(os.path.join(self.folder, "table.md"), "w") as f:
            f.write(self.tables() + "\n")
        print(f"# {name}: {time.time() - begin:.0f} s", flush=True)

    def memory(self, label, run):
        """What a run took and how long, beside its plan; of each node, too."""
        m, predicted, seconds = run.memory(), run.plan["seconds"], run.seconds()
        self.emit("reserved over allocated " + label, m["arena"] / m["used"], "", **m)
        self.emit("measured over planned peak " + label, m["measured"] / m["planned"], "", **m)
        nodes = {n: dict(predicted=run.predicted(n), measured=run.node_seconds(n)) for n in run.nodes()}
        self.emit("predicted over measured seconds " + label, predicted / seconds, "", predicted=predicted, seconds=seconds,
                  nodes=nodes)

    def tables(self):
        return table(self.lines, self.bars) + plans_table(self.lines)

    def failed(self):
        return any("failed" in r for r in self.lines)


def start(args, **more):
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True, process_group=0, **more)


class Peer:
    """PyTorch's side: a script that imports what it needs beside our own next row, and holds nothing on a device until
    it is told what to do, as a JSON list of arguments."""

    def __init__(self, results, script, *args):
        self.results = results
        self.args = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), script), *map(str, args)]
        self.start()

    def start(self):
        self.process = start(self.args + ["wait"], stdin=subprocess.PIPE)

    def work(self, *args, again=True):
        """again: there is more for it to do after this."""
        process, self.process = self.process, None
        try:
            process.stdin.write(json.dumps([str(x) for x in args]) + "\n")
            process.stdin.close()
            self.results.collect(process)
        finally:
            if again:
                self.start()

    def close(self):
        if self.process:
            self.process.communicate("")


def run(parser, bench, names, known):
    """Each row of the command line by the method of its name, which is one of the known; the exit status."""
    unknown = [r for r in names if r.split(":")[0] not in known]
    if not names or unknown:
        parser.error(f"no such row: {unknown[0]}" if unknown else "no row is given")
    b = bench()
    for name in names:
        b.results.row(name, getattr(b, name.split(":")[0]))
    if b.peer:
        b.peer.close()
    print(b.results.tables())
    return 1 if b.results.failed() else 0


def number(x):
    return "" if x is None else f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}" if abs(x) >= 100 else f"{x:.3g}"


def table(lines, bars):
    """The last value of each row and side, as a table in Markdown."""
    last = {}
    for r in lines:
        last.setdefault(r["row"], {})[r["side"]] = r
    text = ["| row | unit | ours | PyTorch | ratio | at least | aim | |", "|---|---|---|---|---|---|---|---|"]
    for row, sides in last.items():
        ours, theirs = sides.get("ours", {}), sides.get("theirs", {})
        if "failed" in ours:
            text.append(f"| {row} | | failed: {ours['failed'][:160].replace('|', '/')} | | | | | |")
            continue
        least, aim = bars.get(row, bars.get(row.split(":")[0], (None, None)))
        value, other = ours.get("value"), theirs.get("value")
        less = row.startswith(LESS_IS_BETTER)
        ratio = None if not value or not other else other / value if less else value / other
        bar = least if least is not None else aim
        ok = "" if bar is None or value is None else "reached" if (value <= bar if less else value >= bar) else "missed"
        text.append(f"| {row} | {(ours or theirs)['unit']} | {number(value)} | {number(other)} | {number(ratio)} | "
                    f"{number(least)} | {number(aim)} | {ok} |")
    return "\n".join(text)


def plans_table(lines):
    """Planned against measured memory, predicted against measured seconds: a table in Markdown, or nothing."""
    memory = {r["row"].split(" peak ", 1)[1]: r for r in lines if r["row"].startswith("measured over planned peak ")}
    times = {r["row"].split(" seconds ", 1)[1]: r for r in lines if r["row"].startswith("predicted over measured seconds ")}
    copies = {r["row"].split("ways, ", 1)[1]: r for r in lines if r["row"].startswith("copies hidden, both ways, ")}
    text, kept = [], 0
    for label, m in memory.items():
        t, share = times[label], m["value"]
        nodes = {n: v["predicted"] / v["measured"] for n, v in t["nodes"].items() if v["measured"] >= 0.05 * t["seconds"]}
        ok = 0.99 <= share <= 1 and abs(t["value"] - 1) <= 0.05 and all(abs(v - 1) <= 0.08 for v in nodes.values())
        kept += ok
        c = copies.get(label)
        moved = f"{c['bytes'] / 2**30:.2f} | {c['value']:.2f} | {c['bare']:.3f}" if c else "0 | | "
        text.append(f"| {label} | {m['planned'] / 2**30:.2f} | {m['host'] / 2**30:.2f} | {share:.4f} | {t['predicted']:.3f} | "
                     f"{t['seconds']:.3f} | {t['value']:.2f} | {', '.join(f'{n} {v:.2f}' for n, v in nodes.items())} | {moved} | "
                     f"{'kept' if ok else 'not kept'} |")
    if not text:
        return ""
    return "\n".join(["", "", "| configuration | planned GiB | host GiB | measured / planned | predicted s | measured s | ratio | nodes | "
                      "copied GiB | hidden | copies alone s | |",
                      "|---|---|---|---|---|---|---|---|---|---|---|---|", *text, f"\n{kept} of {len(text)} kept"])
