"""The library libgraphrun as graphrun.h declares it, by ctypes; private to the package.

Structs are those of the header, field by field; tests/test_header.py compiles the header and compares them.
"""
from __future__ import annotations

import ctypes as c
import glob
import importlib.util
import os
from pathlib import Path
from typing import Any

API = 1

STATUS = ("OK", "E_NOMEM", "E_INVALID", "E_IO", "E_NOFIT", "E_FAILED", "E_STOPPED", "E_DIVERGED")
OK, E_NOMEM, E_INVALID, E_IO, E_NOFIT, E_FAILED, E_STOPPED, E_DIVERGED = range(len(STATUS))


def _struct(struct: str, /, **fields: Any) -> Any:
    return type(struct, (c.Structure,), {"_fields_": list(fields.items())})


u32, u64, f64 = c.c_uint32, c.c_uint64, c.c_double
text: Any = c.c_char_p
flag, size, pointer = c.c_bool, c.c_size_t, c.c_void_p

Message = _struct("graphrun_message", severity=c.c_int, file=text, line=c.c_uint, col=c.c_uint, text=text, whole=text)
Text = _struct("graphrun_text", bytes=pointer, n=size)
Rows = _struct("graphrun_rows", n=u32, n_tokens=u32, stride=u32, longest=u32, group=pointer, prompt_len=pointer,
               response_len=pointer, token_offset=pointer, truncated=pointer, ids=pointer, logprob=pointer)
Batch = _struct("graphrun_batch", node=text, step=u32, rows=Rows, prompt=c.POINTER(Text), response=c.POINTER(Text),
                answer=c.POINTER(Text), record=c.POINTER(Text), names=c.POINTER(text), n_names=u32, per_token=flag,
                scores=pointer)
SCORE = c.CFUNCTYPE(None, pointer, c.POINTER(Batch), pointer)
ANSWER = c.CFUNCTYPE(None, pointer, pointer, size, pointer)
Function = _struct("graphrun_function", name=text, score=SCORE, answer=ANSWER, user=pointer)
Column = _struct("graphrun_column", name=text, type=c.c_int, level=c.c_int, data=pointer, n=size)
Seen = _struct("graphrun_seen", node=text, step=u32, rows=c.POINTER(Rows), column=c.POINTER(Column), n=size)
SAW = c.CFUNCTYPE(None, pointer, c.POINTER(Seen), pointer)
Watch = _struct("graphrun_watch", node=text, saw=SAW, user=pointer)
Ask = _struct("graphrun_ask", size=size, graph=text, text=text, text_bytes=size, set=c.POINTER(text), n_set=size,
              ranks=text, device=text, hardware=text, policy=text, budget=u64, host_budget=u64, out=text, plan=text,
              resume=text, replan=flag, accept_changes=flag, check_memory=flag, progress=flag, has_seed=flag, seed=u64,
              steps=u64, until=u64, functions=c.POINTER(Function), n_functions=size, watches=c.POINTER(Watch),
              n_watches=size)
Facts = _struct("graphrun_plan_facts", graph=text, hardware=text, device=text, numerics=text, ranks=text, fits=flag,
                ns=u64, peak_bytes=u64, budget_bytes=u64, arena_bytes=u64, overhead_bytes=u64, host_bytes=u64,
                peak_step=u32, n_steps=u32, n_all_steps=u32, n_entries=u32)
Step = _struct("graphrun_step", what=text, node=text, kind=text, lane=text, bytes=u64, resident_bytes=u64, ns=u64)
Entry = _struct("graphrun_entry", what=text, category=text, on_device=flag, bytes=u64, offset=u64, first=u32, last=u32)
Number = _struct("graphrun_number", name=text, value=f64)
Iteration = _struct("graphrun_iteration", step=u32, steps=u32, number=c.POINTER(Number), n=size)

STRUCTS = (Message, Text, Rows, Batch, Function, Column, Seen, Watch, Ask, Facts, Step, Entry, Number, Iteration)

_CALLS = {  # name: (result, arguments)
    "api": (u32, []),
    "version": (text, []),
    "status_text": (text, [c.c_int]),
    "log_new": (pointer, []),
    "log_free": (None, [pointer]),
    "log_count": (size, [pointer]),
    "log_clear": (None, [pointer]),
    "log_at": (c.POINTER(Message), [pointer, size]),
    "fail": (None, [pointer, text]),
    "reply": (None, [pointer, text, size]),
    "check": (c.c_int, [c.POINTER(Ask), pointer]),
    "plan_new": (c.c_int, [c.POINTER(pointer), c.POINTER(Ask), pointer]),
    "plan_free": (None, [pointer]),
    "plan_json": (text, [pointer]),
    "plan_table": (text, [pointer]),
    "plan_roles": (u32, [pointer]),
    "plan_of": (Facts, [pointer, u32]),
    "plan_step": (Step, [pointer, u32, u32]),
    "plan_entry": (Entry, [pointer, u32, u32]),
    "run_new": (c.c_int, [c.POINTER(pointer), c.POINTER(Ask), pointer]),
    "run_next": (c.c_int, [pointer, c.POINTER(c.POINTER(Iteration)), pointer]),
    "run_stop": (None, [pointer]),
    "run_set": (c.c_int, [pointer, text, f64, pointer]),
    "run_out": (text, [pointer]),
    "run_free": (c.c_int, [pointer, pointer]),
}


CUDA = Path(__file__).parent / "lib" / "cuda"  # of a build with CUDA: the libraries of NVIDIA that it loads, a line each


def cuda_files(names: list[str] | None = None, folders: list[str] | None = None) -> list[str]:
    """The CUDA libraries that this build loads and torch's packages hold (nvidia/*/lib), by the very names that it asks for.

    Packages beside this one are found without this; so are those of the machine.
    """
    if names is None:
        names = CUDA.read_text().split() if CUDA.exists() else []
    if folders is None:
        spec = importlib.util.find_spec("nvidia")
        folders = list(spec.submodule_search_locations or []) if spec else []
    found = [sorted(glob.glob(os.path.join(folder, "*", "lib", name))) for name in names for folder in folders]
    return [files[0] for files in found if files]


def load_cuda(names: list[str] | None = None, folders: list[str] | None = None) -> list[str]:
    """Load them, so that the library finds them wherever they lie; returns their files."""
    files = cuda_files(names, folders)
    for file in files:
        c.CDLL(file, mode=c.RTLD_GLOBAL)
    return files


def _why(error: OSError) -> str:
    """What can be done about a library that cannot be loaded."""
    missing = str(error).split(":", 1)[0]
    if CUDA.exists() and missing in CUDA.read_text().split():
        return (f"{error}. This is the build with CUDA: it takes NVIDIA's libraries from torch's packages (pip install torch, or "
                "the packages nvidia-* that graphrun-cuda asks for) or from the machine; the package graphrun is without CUDA")
    return f"{error}; GRAPHRUN_LIBRARY names another one"


def _path() -> str:
    """GRAPHRUN_LIBRARY, else that of the package, else that of the system."""
    named = os.environ.get("GRAPHRUN_LIBRARY")
    if named:
        return named
    own = Path(__file__).parent / "lib" / "libgraphrun.so.1"
    return str(own) if own.exists() else "libgraphrun.so.1"


class Library:
    """Its functions, without graphrun_."""

    def __getattr__(self, name: str) -> Any:  # those of _CALLS are there
        raise AttributeError(name)

    def __init__(self) -> None:
        path = _path()
        try:
            load_cuda()
            self._library = c.CDLL(path)
        except OSError as error:
            raise ImportError(f"graphrun: its library cannot be loaded: {_why(error)}") from error
        for name, (result, arguments) in _CALLS.items():
            call = getattr(self._library, "graphrun_" + name)
            call.restype, call.argtypes = result, arguments
            setattr(self, name, call)
        if self.api() != API:
            raise ImportError(f"graphrun: {path} has API {self.api()}, and this package knows {API}")
