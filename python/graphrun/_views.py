"""Arrays of a run where they lie; private to the package.

They are valid while the function is called that is handed them. What it keeps of them would show other bytes later, or
none: so each call looks for views that have outlived it, and fails with their names.
"""
from __future__ import annotations

import ctypes
import gc
import json
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple


class _Numpy:
    """numpy, loaded where an array is first asked for: checking, planning and the command line do without."""

    def __getattr__(self, name: str) -> Any:
        try:
            import numpy
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("rows and columns are numpy's arrays: pip install numpy") from error
        return getattr(numpy, name)


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Numpy()

_TYPES = ("float32", "float64", "int32", "uint8")  # graphrun_type
LEVELS = ("scalar", "group", "sequence", "token")  # graphrun_level


def need_arrays() -> None:
    """Fail now, and not in the first iteration, where there is no numpy."""
    np.ndarray  # noqa: B018


class Views:
    """Makes views, and knows which of them are still held."""

    def __init__(self) -> None:
        self._made: List[Tuple[str, Any]] = []

    def view(self, name: str, address: Optional[int], dtype: Any, shape: Tuple[int, ...], write: bool = False) -> np.ndarray:
        n = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not n or not address:
            return np.empty(shape, dtype)
        memory = (ctypes.c_uint8 * n).from_address(address)
        self._made.append((name, weakref.ref(memory)))
        array = np.frombuffer(memory, dtype).reshape(shape)
        array.flags.writeable = write
        return array

    def kept(self) -> List[str]:
        """The names of views that somebody still holds."""
        if any(alive() is not None for _, alive in self._made):
            gc.collect()
        return [name for name, alive in self._made if alive() is not None]


class Rows:
    """The rows of a batch, as numpy arrays that lie where the run has them: read them, and copy what is to be kept.

    n, n_tokens: sequences, and response tokens of all of them
    group, prompt_len, response_len, truncated: [n]
    token_offset: [n + 1], values of tokens are packed, from token_offset[0] on
    ids: [n, stride] the prompt's, then the response's
    logprob: [n, longest] of each sampled token, as sampled
    """

    n: int
    n_tokens: int
    group: np.ndarray
    prompt_len: np.ndarray
    response_len: np.ndarray
    truncated: np.ndarray
    token_offset: np.ndarray
    ids: np.ndarray
    logprob: np.ndarray

    def __init__(self, r: Any, views: Views) -> None:
        n = self.n = r.n
        self.n_tokens = r.n_tokens
        for name, dtype, shape in (("group", np.uint32, (n,)), ("prompt_len", np.uint32, (n,)),
                                   ("response_len", np.uint32, (n,)), ("token_offset", np.uint32, (n + 1,)),
                                   ("truncated", np.uint8, (n,)), ("ids", np.int32, (n, r.stride)),
                                   ("logprob", np.float32, (n, r.longest))):
            setattr(self, name, views.view(name, getattr(r, name), dtype, shape))

    def response_ids(self, i: int) -> np.ndarray:
        """The ids of response i."""
        begin = int(self.prompt_len[i])
        return self.ids[i, begin:begin + int(self.response_len[i])]


def _texts(array: Any, n: int) -> List[str]:
    return [ctypes.string_at(array[i].bytes, array[i].n).decode("utf-8", "replace") for i in range(n)]


class Batch:
    """Responses to be scored, as a reward function is handed them.

    node, step: the node, and the iteration from 1
    names: of the node's `names`; [] where a sequence has one score
    per_token: `level: token`, a score for each response token
    rows: the rows, see Rows
    scores: an array to fill, [n], [n, names] or [tokens]; or return the scores
    """

    node: str
    step: int
    names: List[str]
    per_token: bool
    rows: Rows
    scores: np.ndarray

    def __init__(self, b: Any, views: Views) -> None:
        self.node, self.step = b.node.decode(), b.step
        self.names = [b.names[i].decode() for i in range(b.n_names)]
        self.per_token = b.per_token
        self.rows = Rows(b.rows, views)
        n = self.rows.n
        shape = (self.rows.n_tokens,) if b.per_token else (n, len(self.names)) if self.names else (n,)
        self.scores = views.view("scores", b.scores, np.float64, shape, write=True)
        self._b: Optional[Any] = b
        self._cache: Dict[str, List[Any]] = {}

    def _text(self, what: str) -> List[str]:
        if what not in self._cache:
            if self._b is None:
                raise RuntimeError("the batch is over: copy what is to be kept while the function is called")
            self._cache[what] = _texts(getattr(self._b, what), self.rows.n)
        return self._cache[what]

    def __len__(self) -> int:
        return self.rows.n

    @property
    def prompts(self) -> List[str]:
        return self._text("prompt")

    @property
    def responses(self) -> List[str]:
        return self._text("response")

    @property
    def answers(self) -> Optional[List[str]]:
        """What the node's `answer` names; None where it names nothing."""
        return self._text("answer") if "answer" in self._cache or (self._b is not None and self._b.answer) else None

    @property
    def records(self) -> List[Dict[str, Any]]:
        """The records of the data."""
        if "records" not in self._cache:
            self._cache["records"] = [json.loads(x) for x in self._text("record")]
        return self._cache["records"]

    def take(self, result: Any) -> None:
        """What the function has returned; None: it has filled in scores."""
        if result is None:
            return
        if isinstance(result, dict):
            if set(result) != set(self.names):
                raise ValueError(f"scores of {sorted(result)} instead of {self.names}")
            result = np.stack([np.asarray(result[name], np.float64) for name in self.names], axis=1)
        given = np.asarray(result, np.float64)
        if given.shape != self.scores.shape:
            raise ValueError(f"scores of shape {given.shape} instead of {self.scores.shape}")
        self.scores[...] = given

    def end(self) -> None:
        self._b = None
        for name in ("rows", "scores"):
            self.__dict__.pop(name, None)


class Seen:
    """What a node has read and written: rows (None: it has none), and columns by their names.

    columns["advantage"] is an array that lies where the run has it; levels["advantage"] says what its values are of:
    "scalar", "group", "sequence" or "token".
    """

    node: str
    step: int
    rows: Optional[Rows]
    columns: Dict[str, np.ndarray]
    levels: Dict[str, str]

    def __init__(self, s: Any, views: Views) -> None:
        self.node, self.step = s.node.decode(), s.step
        self.rows = Rows(s.rows.contents, views) if s.rows else None
        self.columns, self.levels = {}, {}
        for i in range(s.n):
            x = s.column[i]
            name = x.name.decode()
            self.columns[name] = views.view(name, x.data, _TYPES[x.type], (x.n,))
            self.levels[name] = LEVELS[x.level]

    def end(self) -> None:
        for name in ("rows", "columns"):
            self.__dict__.pop(name, None)


