"""The structs of _library.py are those of graphrun.h: a C program prints sizes and offsets."""
import ctypes
import importlib.util
import os
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


NVIDIA = ["libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2"]


def nvidia_package(folder, *files):
    """Libraries as torch's packages hold them."""
    folder.mkdir()
    source = folder / "x.c"
    source.write_text("int x;\n")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-shared", source, "-o", folder / name], check=True)
    return str(folder)


def test_torch_cuda_libraries_are_found_by_the_names_that_are_asked_for(tmp_path):
    """In one folder, as of CUDA 13, or one for each; another version beside them is not taken."""
    new = nvidia_package(tmp_path / "new", "cu13/lib/libcublasLt.so.13", "cudnn/lib/libcudnn.so.9", "nccl/lib/libnccl.so.2")
    old = nvidia_package(tmp_path / "old", "cublas/lib/libcublasLt.so.12", "cudnn/lib/libcudnn.so.9")
    assert [Path(x).name for x in lib.load_cuda(NVIDIA, [new])] == NVIDIA
    assert [Path(x).name for x in lib.load_cuda(NVIDIA, [old])] == ["libcudnn.so.9"]
    assert lib.load_cuda(NVIDIA, [str(tmp_path / "nothing")]) == []


def test_a_missing_cuda_library_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr(lib, "CUDA", tmp_path / "cuda")
    assert "GRAPHRUN_LIBRARY names another" in lib._why(OSError("libcudnn.so.9: cannot open shared object file"))
    lib.CUDA.write_text("libcudnn.so.9\n")
    assert "pip install torch" in lib._why(OSError("libcudnn.so.9: cannot open shared object file"))
    assert "GRAPHRUN_LIBRARY names another" in lib._why(OSError("libyaml-0.so.2: cannot open shared object file"))


def test_the_program_is_told_where_the_packages_lie(tmp_path, monkeypatch):
    from graphrun import __main__ as command

    away = nvidia_package(tmp_path / "nvidia", "cudnn/lib/libcudnn.so.9")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    monkeypatch.setattr(command, "cuda_files", lambda: [f"{away}/cudnn/lib/libcudnn.so.9"])
    command._find_cuda()
    assert os.environ["LD_LIBRARY_PATH"] == f"/mine:{away}/cudnn/lib"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    monkeypatch.setattr(command, "cuda_files", lambda: [])
    command._find_cuda()
    assert "LD_LIBRARY_PATH" not in os.environ


BUILDER = HEADER.parents[2] / "python/build_wheel.py"


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf")
def test_a_wheel_with_cuda_asks_for_the_packages_of_what_it_loads(tmp_path):
    spec = importlib.util.spec_from_file_location("build_wheel", BUILDER)
    wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wheel)
    for cuda, cudnn, packages in ((13, 9, ["nvidia-cublas>=13,<14", "nvidia-cudnn-cu13>=9,<10", "nvidia-nccl-cu13>=2.28"]),
                                  (12, 8, ["nvidia-cublas-cu12>=12,<13", "nvidia-cudnn-cu12>=8,<9", "nvidia-nccl-cu12>=2.28"])):
        names = [f"libcublasLt.so.{cuda}", f"libcudnn.so.{cudnn}"]
        for name in names:
            subprocess.run(["cc", "-shared", "-xc", "/dev/null", f"-Wl,-soname,{name}", "-o", tmp_path / name], check=True)
        library = tmp_path / "libgraphrun.so.1"
        subprocess.run(["cc", "-shared", "-xc", "/dev/null", "-Wl,--no-as-needed", *(f"-l:{x}" for x in names), f"-L{tmp_path}", "-o", library],
                       check=True)
        found = wheel._nvidia(library)
        assert [*found] == [*names, "libnccl.so.2"]
        assert wheel._packages(found) == packages
    assert wheel._packages({}) == []
    with pytest.raises(SystemExit, match="no build with CUDA"):
        wheel._nvidia(tmp_path / names[0])
