"""The command line: python -m graphrun, and the command graphrun where the package is installed."""
import os
import sys
from pathlib import Path

from graphrun._library import cuda_files


def _find_cuda() -> None:
    """The program's loader is told where torch's packages lie: perhaps elsewhere than beside this one."""
    folders = dict.fromkeys(os.path.dirname(f) for f in cuda_files())
    if folders:
        own = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([*([own] if own else []), *folders])


def main() -> None:
    """Become the program that the package holds, or that of the system."""
    own = Path(__file__).parent / "bin" / "graphrun"
    os.environ.setdefault("GRAPHRUN_PYTHON", sys.executable)  # of the workers of `log:`
    _find_cuda()
    program = str(own) if own.exists() else os.environ.get("GRAPHRUN_PROGRAM", "graphrun")
    try:
        os.execvp(program, ["graphrun", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"graphrun: the program '{program}' cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
