"""graphrun from Python: check a graph, plan it, run it iteration by iteration.

    import graphrun

    def reward(batch):
        return [float(r == a) for r, a in zip(batch.responses, batch.answers)]

    graph = {"graph": "mine", "use": "graphs/quickstart.yaml", "nodes": {"reward": {"rule": None, "function": reward}}}
    print(graphrun.plan(graph))
    with graphrun.run(graph, out="runs/mine") as run:
        for iteration in run:
            print(iteration.step, iteration["reward_mean"])

A graph is a file, or a dict with what a file would say; functions stand in a dict as themselves. A run is that of
`graphrun exec`: the same directory, the same bits. docs/PROGRAMS.md says more.
"""
from __future__ import annotations

import ctypes as c
import json
import os
import re
import sys
import warnings
from typing import (Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, Union)

from . import _library as lib
from ._views import Batch, Rows, Seen, Views, need_arrays

__all__ = ["Batch", "DoesNotFit", "Entry", "Error", "GraphError", "Iteration", "Message", "Plan", "Role", "Rows", "Run",
           "RunFailed", "Seen", "Step", "Warned", "check", "plan", "run", "version"]

_api = lib.Library()

Graph = Union[str, "os.PathLike[str]", Mapping[str, Any]]
Reward = Callable[[Batch], Any]
Environment = Callable[[List[Dict[str, Any]]], List[Dict[str, Any]]]
Watch = Callable[[Seen], None]


def version() -> str:
    """What `graphrun --version` prints of the library."""
    return str(_api.version().decode())


# ---- messages ----------------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """One message. file is None where it has no place; line and col count from 1, 0: none."""

    severity: str  # "error", "warning" or "note"
    file: Optional[str]
    line: int
    col: int
    text: str
    whole: str  # "file:line:col: error: text"

    def __str__(self) -> str:
        return self.whole


class Warned(UserWarning):
    """A warning of graphrun."""


class Error(Exception):
    """What went wrong, with all messages. The place of one in a dict is that of its line in `graph_text`."""

    def __init__(self, messages: Sequence[Message], graph_text: Optional[str] = None) -> None:
        self.messages = list(messages)
        self.graph_text = graph_text
        super().__init__("\n".join(self._lines()) or "it failed, and nobody said why")

    def _lines(self) -> Iterator[str]:
        lines = (self.graph_text or "").split("\n")
        for m in self.messages:
            yield m.whole
            if self.graph_text and m.file == _GRAPH and 0 < m.line <= len(lines):
                yield f"    {lines[m.line - 1].strip()}"


class GraphError(Error):
    """The graph or what was asked for is wrong."""


class DoesNotFit(Error):
    """No plan fits. `plan` is the smallest one."""

    plan: Optional["Plan"] = None


class RunFailed(Error):
    """A run failed while it ran."""


_ERRORS: Dict[int, Type[Error]] = {lib.E_INVALID: GraphError, lib.E_NOFIT: DoesNotFit}
_ERRORS_OF_INPUT = {**_ERRORS, lib.E_IO: GraphError}  # before anything runs: a file was named wrongly
_SEVERITIES = ("error", "warning", "note")


def _take_messages(log: int) -> List[Message]:
    out = []
    for i in range(_api.log_count(log)):
        m = _api.log_at(log, i).contents
        out.append(Message(_SEVERITIES[m.severity], m.file.decode("utf-8", "replace") if m.file else None, m.line, m.col,
                           m.text.decode("utf-8", "replace"), m.whole.decode("utf-8", "replace")))
    return out


class _Log:
    """Messages of one call."""

    def __enter__(self) -> "_Log":
        self.log = _api.log_new()
        if not self.log:
            raise MemoryError
        return self

    def __exit__(self, *_: Any) -> None:
        _api.log_free(self.log)

    def check(self, status: int, graph_text: Optional[str], runs: bool = False) -> List[Message]:
        """Raise the error of a status; else warn of what was said, and return it."""
        messages = _take_messages(self.log)
        if status == lib.E_NOMEM and not any(m.severity == "error" for m in messages):
            raise MemoryError("graphrun is out of memory")
        if status != lib.OK:
            raise (_ERRORS if runs else _ERRORS_OF_INPUT).get(status, RunFailed)(messages, graph_text)
        for m in messages:
            if m.severity == "warning":
                warnings.warn(m.whole, Warned, stacklevel=4)
        return messages


# ---- graphs, and what is asked of them ------------------------------------------------------------------------------

_GRAPH = "graph"  # what messages call a dict


def _plain(value: Any, functions: Dict[str, Callable[..., Any]]) -> Any:
    """As JSON can say it: a function by its name, which is added to functions."""
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        name = "".join(x if x.isalnum() or x == "_" else "_" for x in name)
        unique, n = name, 2
        while unique in functions and functions[unique] is not value:
            unique, n = f"{name}_{n}", n + 1
        functions[unique] = value
        return unique
    if isinstance(value, Mapping):
        return {str(k): _plain(v, functions) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, functions) for v in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if hasattr(value, "item") else value  # numbers of numpy


def _scalar(value: Any) -> str:
    """A text that is a parameter and no more, "$lr", stands for its value, which may be a number: it has no quotes."""
    if isinstance(value, str) and re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", value):
        return value
    return json.dumps(value, allow_nan=False)


def _graph_file(value: Any, indent: str = "") -> str:
    """A graph as a graph file says it: JSON, a key a line, so that places in it mean something."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        pairs = (f"{inner}{json.dumps(k)}: {_graph_file(v, inner)}" for k, v in value.items())
        return "{\n" + ",\n".join(pairs) + f"\n{indent}}}"
    if isinstance(value, list):
        return "[" + ", ".join(_graph_file(v, inner) for v in value) + "]"
    return _scalar(value)


def _is_environment(name: str, graph: Any) -> bool:
    """Whether a dict names the function in an environment."""
    if isinstance(graph, Mapping):
        inside = graph.get("environment")
        return (isinstance(inside, Mapping) and inside.get("function") == name) or any(
            _is_environment(name, v) for v in graph.values())
    return isinstance(graph, list) and any(_is_environment(name, v) for v in graph)


class _Ask:
    """A graphrun_ask, and what it points to."""

    def __init__(self, graph: Optional[Graph], settings: Optional[Mapping[str, Any]], **given: Any) -> None:
        self.functions: Dict[str, Callable[..., Any]] = {}
        self.environments: Dict[str, Callable[..., Any]] = {}
        self.graph_text: Optional[str] = None
        ask = self.ask = lib.Ask(size=c.sizeof(lib.Ask))
        if isinstance(graph, Mapping):
            plain = _plain(graph, self.functions)
            self.graph_text = _graph_file(plain)
            for name in [x for x in self.functions if _is_environment(x, plain)]:
                self.environments[name] = self.functions.pop(name)
            encoded = self.graph_text.encode()
            ask.graph, ask.text, ask.text_bytes = _GRAPH.encode(), encoded, len(encoded)
        elif graph is not None:
            ask.graph = os.fspath(graph).encode()
        texts = [f"{k}={_setting(v)}".encode() for k, v in (settings or {}).items()]
        ask.set, ask.n_set = (c.c_char_p * max(len(texts), 1))(*texts), len(texts)
        for name, value in given.items():
            if value is not None:
                setattr(ask, name, os.fspath(value).encode() if isinstance(value, (str, os.PathLike)) else value)

    def __call__(self) -> Any:
        return c.byref(self.ask)


def _setting(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return repr(float(value)) if isinstance(value, float) else str(value)


def _bytes(value: Union[None, int, str]) -> Optional[int]:
    """A size: bytes, or a text such as "80GiB"."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGT])(i?))?B?\s*", value)
    if not found:
        raise ValueError(f"'{value}' is no size: 80GiB, for one")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" KMGT".index(unit) if unit else 0))


def check(graph: Graph, *, set: Optional[Mapping[str, Any]] = None, ranks: Union[None, int, str] = None) -> List[Message]:
    """Check a graph. Its warnings and notes; GraphError has all errors that there are.

    set: values of its parameters and keys, as --set: {"lr": 1e-6, "nodes.rollout.samples": 4}
    """
    ask = _Ask(graph, set, ranks=None if ranks is None else str(ranks))
    with _Log() as log:
        return log.check(_api.check(ask(), log.log), ask.graph_text)


# ---- plans ---------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step of a plan: bytes it moves, bytes on the device during it, predicted nanoseconds."""

    what: str
    node: Optional[str]
    kind: str
    lane: str
    bytes: int
    resident_bytes: int
    ns: int


class Entry(NamedTuple):
    """A copy of an object in memory; it lives from step `first` to step `last`, both included."""

    what: str
    category: str
    on_device: bool
    bytes: int
    offset: int
    first: int
    last: int


class Role:
    """The plan of ranks that do the same; a graph without pools has one.

    steps: of an iteration, and behind the first n_steps of them those of a validation
    ledger: every copy of every object, with its place and lifetime
    """

    ranks: str
    device: str
    fits: bool
    peak_bytes: int
    budget_bytes: int
    arena_bytes: int
    overhead_bytes: int
    host_bytes: int
    peak_step: int
    n_steps: int
    steps: List[Step]
    ledger: List[Entry]

    def __init__(self, plan: int, role: int) -> None:
        facts = _api.plan_of(plan, role)
        for name in ("fits", "peak_bytes", "budget_bytes", "arena_bytes", "overhead_bytes", "host_bytes", "peak_step",
                     "n_steps"):
            setattr(self, name, getattr(facts, name))
        self.ranks, self.device = facts.ranks.decode(), facts.device.decode()
        self.steps = [_tuple(Step, _api.plan_step(plan, role, i)) for i in range(facts.n_all_steps)]
        self.ledger = [_tuple(Entry, _api.plan_entry(plan, role, i)) for i in range(facts.n_entries)]


def _tuple(kind: Any, x: Any) -> Any:
    values = (getattr(x, name) for name in kind._fields)
    return kind(*(v.decode() if isinstance(v, bytes) else v for v in values))


class Plan(Role):
    """A plan: that of the first role, with all `roles`. It is printed as `graphrun plan` prints it.

    seconds: predicted, of an iteration
    numerics: the hash that stands for all that decides bits
    """

    graph: str
    hardware: str
    numerics: str
    seconds: float
    roles: List[Role]
    messages: List[Message]

    def __init__(self, plan: int) -> None:
        super().__init__(plan, 0)
        facts = _api.plan_of(plan, 0)
        self.graph, self.hardware = facts.graph.decode(), facts.hardware.decode()
        self.numerics, self.seconds = facts.numerics.decode(), facts.ns * 1e-9
        self.roles = [self, *(Role(plan, i) for i in range(1, _api.plan_roles(plan)))]
        self.messages = []
        self._json: str = _api.plan_json(plan).decode()
        self._table: str = _api.plan_table(plan).decode()

    def __str__(self) -> str:
        return self._table

    def json(self) -> str:
        """As `graphrun plan --format json` writes it: for run(plan=FILE), verify and diff."""
        return self._json


def plan(graph: Graph, *, set: Optional[Mapping[str, Any]] = None, ranks: Union[None, int, str] = None,
         device: Optional[str] = None, hardware: Union[None, str, "os.PathLike[str]"] = None,
         budget: Union[None, int, str] = None, host_budget: Union[None, int, str] = None,
         policy: Optional[str] = None) -> Plan:
    """Plan a graph: memory and steps before anything runs. DoesNotFit has the smallest plan, and advice in its messages.

    ranks: 8, or hosts by devices such as "2x8"; hardware: a name such as "h200", or a file; budget: bytes, or "80GiB"
    """
    ask = _Ask(graph, set, ranks=None if ranks is None else str(ranks), device=device, hardware=hardware,
               budget=_bytes(budget), host_budget=_bytes(host_budget), policy=policy)
    made = c.c_void_p()
    with _Log() as log:
        status = _api.plan_new(c.byref(made), ask(), log.log)
        try:
            out = Plan(made.value) if made.value else None
        finally:
            _api.plan_free(made)
        try:
            messages = log.check(status, ask.graph_text)
        except DoesNotFit as error:
            error.plan = out
            raise
    assert out is not None
    out.messages = messages
    return out


# ---- runs ----------------------------------------------------------------------------------------------------------


class Iteration(Dict[str, float]):
    """The numbers of an iteration, by their names in metrics.jsonl; NaN where they are null there.

    step: from 1; 0: a validation before the first. steps: the last one's number.
    """

    def __init__(self, numbers: Mapping[str, float], step: int, steps: int) -> None:
        super().__init__(numbers)
        self.step, self.steps = step, steps


class _Calls:
    """Functions and watches as the library calls them. What they raise ends the run, and is its cause."""

    def __init__(self, rewards: Mapping[str, Reward], environments: Mapping[str, Environment],
                 watches: Mapping[str, Watch]) -> None:
        if rewards or watches:
            need_arrays()
        self.raised: Optional[BaseException] = None
        self._held: List[Any] = []
        functions = [lib.Function(name=name.encode(), score=self._hold(lib.SCORE(self._score(f))))
                     for name, f in rewards.items()]
        functions += [lib.Function(name=name.encode(), answer=self._hold(lib.ANSWER(self._answer(f))))
                      for name, f in environments.items()]
        self.functions = (lib.Function * max(len(functions), 1))(*functions)
        self.n_functions = len(functions)
        seen = [lib.Watch(node=name.encode(), saw=self._hold(lib.SAW(self._saw(f)))) for name, f in watches.items()]
        self.watches = (lib.Watch * max(len(seen), 1))(*seen)
        self.n_watches = len(seen)

    def _hold(self, call: Any) -> Any:
        self._held.append(call)
        return call

    def _fail(self, call: int, error: BaseException) -> None:
        self.raised = self.raised or error
        _api.fail(call, f"{type(error).__name__}: {error}".replace("\0", "").encode("utf-8", "replace"))

    def _guarded(self, call: int, work: Callable[[Views], None]) -> None:
        views = Views()
        try:
            work(views)
            kept = views.kept()
            if kept:
                raise RuntimeError(f"views of the batch were kept: {', '.join(kept)}; keep copies of them, x.copy()")
        except BaseException as error:  # it would be lost in the library
            self._fail(call, error)

    def _score(self, function: Reward) -> Callable[..., None]:
        def score(_: Any, batch: Any, call: int) -> None:
            def work(views: Views) -> None:
                b = Batch(batch.contents, views)
                try:
                    b.take(function(b))
                finally:
                    b.end()
            self._guarded(call, work)
        return score

    def _saw(self, function: Watch) -> Callable[..., None]:
        def saw(_: Any, seen: Any, call: int) -> None:
            def work(views: Views) -> None:
                s = Seen(seen.contents, views)
                try:
                    function(s)
                finally:
                    s.end()
            self._guarded(call, work)
        return saw

    def _answer(self, function: Environment) -> Callable[..., None]:
        def answer(_: Any, requests: int, n: int, call: int) -> None:
            def work(_: Views) -> None:
                replies = function(json.loads(c.string_at(requests, n)))
                text = json.dumps(list(replies), allow_nan=False).encode()
                _api.reply(call, text, len(text))
            self._guarded(call, work)
        return answer


class Run:
    """A run, iterated over: each next runs one iteration. Use it in `with`, or close it: it then stops as Ctrl-C stops
    `graphrun exec`, with a checkpoint behind the iteration that runs."""

    def __init__(self, ask: _Ask, rewards: Mapping[str, Reward], environments: Mapping[str, Environment],
                 watches: Mapping[str, Watch], callbacks: Sequence[Callable[["Run", Iteration], None]]) -> None:
        self._run = c.c_void_p()
        self._calls = _Calls({**ask.functions, **rewards}, {**ask.environments, **environments}, watches)
        self._callbacks = list(callbacks)
        self._text = ask.graph_text
        self.messages: List[Message] = []
        ask.ask.functions, ask.ask.n_functions = self._calls.functions, self._calls.n_functions
        ask.ask.watches, ask.ask.n_watches = self._calls.watches, self._calls.n_watches
        os.environ.setdefault("GRAPHRUN_PYTHON", sys.executable)  # of the workers of `log:`, which use its packages
        with _Log() as log:
            status = _api.run_new(c.byref(self._run), ask(), log.log)
            self.messages += log.check(status, self._text)
        self.out: str = _api.run_out(self._run).decode()

    def __iter__(self) -> "Run":
        return self

    def __next__(self) -> Iteration:
        if not self._run:
            raise StopIteration
        at = c.POINTER(lib.Iteration)()
        with _Log() as log:
            status = _api.run_next(self._run, c.byref(at), log.log)
            try:
                self.messages += log.check(status, self._text, runs=True)
            except Error as error:
                raise error from self._calls.raised
        if not at:
            raise StopIteration
        x = at.contents
        iteration = Iteration({x.number[i].name.decode(): x.number[i].value for i in range(x.n)}, x.step, x.steps)
        for callback in self._callbacks:
            callback(self, iteration)
        return iteration

    def stop(self) -> None:
        """Have it end behind this iteration, with a checkpoint. Any thread may call it, and a function."""
        if self._run:
            _api.run_stop(self._run)

    def set(self, state: str, value: float) -> None:
        """Give a value of the graph's `state:` another number, with which the next iteration begins."""
        if not self._run:
            raise ValueError("the run is closed")
        with _Log() as log:
            log.check(_api.run_set(self._run, state.encode(), value, log.log), self._text)

    def finish(self) -> Optional[Iteration]:
        """Run to the end; the last iteration."""
        last = None
        for last in self:
            pass
        return last

    def close(self) -> None:
        """Stop it where it has not ended, and free what it holds."""
        run, self._run = self._run, c.c_void_p()
        if not run:
            return
        with _Log() as log:
            status = _api.run_free(run, log.log)
            try:
                self.messages += log.check(status, self._text, runs=True)
            except Error as error:
                raise error from self._calls.raised

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_run", None) and not sys.is_finalizing():
            self.close()


def run(graph: Optional[Graph] = None, *, out: Union[None, str, "os.PathLike[str]"] = None,
        resume: Union[None, str, "os.PathLike[str]"] = None, set: Optional[Mapping[str, Any]] = None,
        steps: Optional[int] = None, until: Optional[int] = None, seed: Optional[int] = None,
        device: Optional[str] = None, hardware: Union[None, str, "os.PathLike[str]"] = None,
        budget: Union[None, int, str] = None, host_budget: Union[None, int, str] = None, policy: Optional[str] = None,
        plan: Union[None, str, "os.PathLike[str]"] = None, replan: bool = False, accept_changes: bool = False,
        check_memory: bool = False, progress: bool = False, functions: Optional[Mapping[str, Reward]] = None,
        environments: Optional[Mapping[str, Environment]] = None, watch: Optional[Mapping[str, Watch]] = None,
        callbacks: Sequence[Callable[[Run, Iteration], None]] = ()) -> Run:
    """Check and plan a graph, and make its run ready; iterate over it to run it.

    out: the run directory; default: runs/NAME-TIME. resume: RUN, "RUN@STEP" or "RUN@best", to go on with a run
    functions, environments: what `function: NAME` stands for in rewards, and in environments of rollouts
    watch: {node: function}, called with what the node has read and written, in each iteration
    callbacks: called with the run and each iteration; they may stop and set
    progress: print the lines of `graphrun exec` to standard output
    """
    ask = _Ask(graph, set, out=out, resume=resume, steps=steps, until=until, has_seed=seed is not None, seed=seed,
               device=device, hardware=hardware, budget=_bytes(budget), host_budget=_bytes(host_budget), policy=policy,
               plan=plan, replan=replan, accept_changes=accept_changes, check_memory=check_memory, progress=progress)
    return Run(ask, functions or {}, environments or {}, watch or {}, callbacks)
