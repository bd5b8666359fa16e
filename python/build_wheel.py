"""The build backend of the package (PEP 517): meson builds library and program, and they go into a wheel with the small
libraries that they need, so that it runs where none of these is installed.

The build needs what tools/setup.sh installs. Of the CUDA libraries none goes in: the package finds those of torch.
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Of every system, and so of none of our wheels (PEP 600); and those of CUDA, which torch's packages have.
SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)|libcublas.*|libcudnn.*|libcuda.*)\.so")
NVIDIA = re.compile(r"^lib(cublas|cublasLt|cudnn|nccl)\.so\.(\d+)$")
NCCL = "libnccl.so.2"  # which is loaded where several ranks run (runtime/comm/comm_nccl.c)
# Where torch's packages put them beside ours: of CUDA 13 in one folder, before that in one for each.
BESIDE = [f"$ORIGIN/../../nvidia/{x}/lib" for x in ("cu13", "cublas", "cudnn", "nccl")]


def _say(*command, **more):
    """Run a command. What pip has set for the Python of this build is not for the one that meson runs in."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run([str(x) for x in command], check=True, text=True, env=outside, **more)


def _version():
    project = re.search(r"version: '([^']*)'", (ROOT / "meson.build").read_text()).group(1)
    text = _say(ROOT / "tools" / "version.sh", project, capture_output=True).stdout.strip()
    return text.replace("-dirty", ".dirty" if "+" in text else "+dirty")


def _settings(config):
    config = dict(config or {})
    cuda = config.pop("cuda", "disabled")
    build = config.pop("build", None)  # a folder that is built already, for tests
    if config or cuda not in ("enabled", "disabled"):
        raise SystemExit(f"build_wheel: settings are cuda=enabled|disabled and build=FOLDER, not {config or cuda}")
    return cuda == "enabled", build


def _needed(binary):
    """The libraries that a binary loads, with their paths."""
    out = _say("ldd", binary, capture_output=True).stdout
    return {name: path for name, path in re.findall(r"^\s*(\S+) => (/\S+)", out, re.M) if not SYSTEM.match(name)}


def _glibc():
    """Of this machine, which the wheel then asks for."""
    return os.confstr("CS_GNU_LIBC_VERSION").split()[1].replace(".", "_")


def _nvidia(library):
    """The libraries of NVIDIA that a build with CUDA loads: {name: major version}."""
    out = _say("readelf", "-d", library, capture_output=True).stdout
    names = [*re.findall(r"\(NEEDED\).*\[(\S+)\]", out), NCCL]
    found = {m.group(0): int(m.group(2)) for m in map(NVIDIA.match, names) if m}
    if len(found) < 3:
        raise SystemExit(f"build_wheel: {library} is no build with CUDA: it needs {', '.join(names)}")
    return found


def _build(folder, cuda):
    # RPATH and not RUNPATH: the libraries find each other, too.
    rpath = "-Wl,--disable-new-dtags,-rpath," + ":".join(["$ORIGIN", "$ORIGIN/../lib", *(BESIDE if cuda else [])])
    _say("meson", "setup", folder, ROOT, "--buildtype=release", "-Dmpi=disabled", "-Dhttp=auto",
         f"-Dcuda={'enabled' if cuda else 'disabled'}", f"-Dc_link_args={rpath}", stdout=sys.stderr)
    targets = ["graphrun", "graphrun-http"] if "graphrun-http" in _say(
        "meson", "introspect", folder, "--targets", capture_output=True).stdout else ["graphrun"]
    _say("ninja", "-C", folder, "libgraphrun.so.1.0.0", *[f"tools/{x}" for x in targets], stdout=sys.stderr)
    return targets


def _collect(folder, cuda, into):
    """Everything of the package, below `into`."""
    package = into / "graphrun"
    shutil.copytree(HERE / "graphrun", package, ignore=shutil.ignore_patterns("__pycache__", "lib", "bin"))
    (package / "lib").mkdir()
    (package / "bin").mkdir()
    library = package / "lib" / "libgraphrun.so.1"
    shutil.copy2(Path(folder) / "libgraphrun.so.1.0.0", library)
    programs = [Path(folder) / "tools" / x for x in ("graphrun", "graphrun-http", "graphrun-log")]
    for program in filter(Path.exists, programs):
        shutil.copy2(program, package / "bin")
    for name, path in {**_needed(library), **_needed(package / "bin" / "graphrun")}.items():
        shutil.copy2(path, package / "lib" / name)
    nvidia = _nvidia(library) if cuda else {}
    if cuda:
        (package / "lib" / "cuda").write_text("".join(f"{x}\n" for x in nvidia))
    return nvidia


def _packages(nvidia):
    """The packages that hold them, those that torch asks for."""
    if not nvidia:
        return []
    cuda = nvidia[next(x for x in nvidia if x.startswith("libcublasLt."))]
    cudnn = nvidia[next(x for x in nvidia if x.startswith("libcudnn."))]
    plain = "" if cuda >= 13 else f"-cu{cuda}"
    return [f"nvidia-cublas{plain}>={cuda},<{cuda + 1}", f"nvidia-cudnn-cu{cuda}>={cudnn},<{cudnn + 1}", f"nvidia-nccl-cu{cuda}>=2.28"]


def _metadata(name, version, nvidia):
    needs = ["numpy>=1.22", *_packages(nvidia)]
    return "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "License: Apache-2.0",
                      "Summary: reinforcement learning of language models from a graph file",
                      "Requires-Python: >=3.9", *(f"Requires-Dist: {x}" for x in needs),
                      "Description-Content-Type: text/markdown", "", (ROOT / "docs" / "PROGRAMS.md").read_text()])


def _write(path, files):
    """A wheel of {name: (bytes, executable)}, its RECORD last; times are fixed, so that builds are alike."""
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        info_folder = next(x for x in files if x.endswith("/METADATA")).rsplit("/", 1)[0]
        for name in sorted(files):
            data, executable = files[name]
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            _add(wheel, name, data, executable)
        _add(wheel, f"{info_folder}/RECORD", (record + f"{info_folder}/RECORD,,\n").encode(), False)


def _add(wheel, name, data, executable):
    info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    info.external_attr = (0o100755 if executable else 0o100644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, data)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    cuda, built = _settings(config_settings)
    name, version = "graphrun-cuda" if cuda else "graphrun", _version()
    stem = f"{name.replace('-', '_')}-{version}"
    machine = os.uname().machine
    tag = f"py3-none-manylinux_{_glibc()}_{machine}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = built or os.path.join(scratch, "build")
        if not built:
            _build(folder, cuda)
        into = Path(scratch) / "wheel"
        nvidia = _collect(folder, cuda, into)
        files = {str(p.relative_to(into)): (p.read_bytes(), os.access(p, os.X_OK)) for p in into.rglob("*") if p.is_file()}
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = (_metadata(name, version, nvidia).encode(), False)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: build_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
                              False)
    files[f"{info}/entry_points.txt"] = (b"[console_scripts]\ngraphrun = graphrun.__main__:main\n", False)
    files[f"{info}/LICENSE"] = ((ROOT / "LICENSE").read_bytes(), False)
    _write(os.path.join(wheel_directory, f"{stem}-{tag}.whl"), files)
    return f"{stem}-{tag}.whl"


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("build_wheel: there is no source package of the Python side alone: build wheels in a clone")
