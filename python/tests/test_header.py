"""The structs of _library.py are those of graphrun.h: a C program prints sizes and offsets."""
import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from graphrun import _library as lib

HEADER = Path(__file__).resolve().parents[2] / "runtime/api/graphrun.h"


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_structs(tmp_path):
    lines = []
    for s in lib.STRUCTS:
        lines.append(f'printf("{s.__name__} %zu\\n", sizeof({s.__name__}));')
        lines += [f'printf("{s.__name__}.{f} %zu %zu\\n", offsetof({s.__name__}, {f}), sizeof((({s.__name__} *)0)->{f}));'
                  for f, _ in s._fields_]
    source = tmp_path / "sizes.c"
    source.write_text(f'#include "{HEADER}"\n#include <stdio.h>\nint main(void) {{\n' + "\n".join(lines) + "\n}\n")
    subprocess.run(["cc", source, "-o", tmp_path / "sizes"], check=True)
    theirs = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    ours = []
    for s in lib.STRUCTS:
        ours.append(f"{s.__name__} {ctypes.sizeof(s)}")
        ours += [f"{s.__name__}.{f} {getattr(s, f).offset} {getattr(s, f).size}" for f, _ in s._fields_]
    assert ours == theirs


def test_every_function_of_the_header_is_bound():
    named = {line.split("graphrun_", 1)[1] for line in HEADER.read_text().split("\n") if line.startswith("GRAPHRUN_EXPORT")}
    header = HEADER.read_text()
    for name in lib._CALLS:
        assert f"graphrun_{name}(" in header
    assert header.count("GRAPHRUN_EXPORT ") - 1 == len(lib._CALLS), named  # less its definition


def test_torch_cuda_libraries_are_found_beside_each_other(tmp_path):
    """A package that holds libraries as torch's do: the newest name is loaded."""
    for folder, name in (("cublas", "libcublasLt.so.13"), ("cudnn", "libcudnn.so.9")):
        (tmp_path / folder / "lib").mkdir(parents=True)
        source = tmp_path / "x.c"
        source.write_text("int x;\n")
        subprocess.run(["cc", "-shared", source, "-o", tmp_path / folder / "lib" / name], check=True)
    assert [Path(x).name for x in lib.load_cuda([str(tmp_path)])] == ["libcublasLt.so.13", "libcudnn.so.9"]
    assert lib.load_cuda([str(tmp_path / "nothing")]) == []
