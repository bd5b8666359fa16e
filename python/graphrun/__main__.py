"""The command line: python -m graphrun, and the command graphrun where the package is installed."""
import os
import sys
from pathlib import Path


def main() -> None:
    """Become the program that the package holds, or that of the system."""
    own = Path(__file__).parent / "bin" / "graphrun"
    os.environ.setdefault("GRAPHRUN_PYTHON", sys.executable)  # of the workers of `log:`
    program = str(own) if own.exists() else os.environ.get("GRAPHRUN_PROGRAM", "graphrun")
    try:
        os.execvp(program, ["graphrun", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"graphrun: the program '{program}' cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
