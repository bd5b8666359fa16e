"""The adapter graphs/environments/openenv_client.py against a server of OpenEnv's own: answers, rewards, bad actions, the end.

Usage: python tests/oracle/openenv_client.py            needs openenv 0.10, uvicorn, websockets (PyPI)
"""
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

ADAPTER = pathlib.Path(__file__).resolve().parents[2] / "graphs/environments/openenv_client.py"


class Guess(Action):
    number: int


class Told(Observation):
    said: str = ""


class Hidden(Environment):
    """A number to be found; each guess is told to be too low or too high."""
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.number = self.steps = 0

    def reset(self, seed=None, episode_id=None, number=5, **more):
        self.number, self.steps = number, 0
        return Told(said="guess", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **more):
        self.steps += 1
        right = action.number == self.number
        return Told(said="right" if right else "low" if action.number < self.number else "high", done=right, reward=float(right))

    @property
    def state(self):
        return State(episode_id="0", step_count=self.steps)


def main():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    app = create_fastapi_app(Hidden, Guess, Told, max_concurrent_envs=8)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    def start(*more):
        return subprocess.Popen([sys.executable, ADAPTER, f"http://127.0.0.1:{port}", "", "said", *more], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    def ask(last=False, **m):
        if m["type"] == "step":
            m["last"] = last
        print(json.dumps(m), file=adapter.stdin, flush=True)
        return json.loads(adapter.stdout.readline())

    adapter = start()
    assert ask(id=1, type="start", record={"reset": {"number": 7}}) == {"id": 1, "text": "guess"}
    assert ask(id=2, type="start", record={}) == {"id": 2, "text": "guess"}
    assert ask(id=1, type="step", text='I say {"number": 3}') == {"id": 1, "text": "low", "done": False, "reward": 0.0}
    assert ask(id=2, type="step", text='{"number": 5}') == {"id": 2, "text": "right", "done": True, "reward": 1.0, "metrics": {"step_count": 1}}
    assert ask(id=1, type="step", text="no idea")["text"].startswith("This is no action")
    assert "error" in ask(id=1, type="step", text='{"nmber": 3}')
    assert ask(id=3, type="start", record={"reset": {"number": 1}}) == {"id": 3, "text": "guess"}
    assert ask(id=3, type="step", text='{"number": 2}') == {"id": 3, "text": "high", "done": False, "reward": 0.0}
    assert ask(id=3, type="step", text="no idea", last=True)["metrics"] == {"step_count": 1}
    adapter.stdin.close()
    adapter.wait(20)
    adapter = start("user")
    assert ask(id=1, type="start", record={}) == {"id": 1, "messages": [{"role": "user", "content": "guess"}]}
    assert ask(id=1, type="step", text='{"number": 3}')["messages"] == [{"role": "user", "content": "low"}]
    adapter.stdin.close()
    adapter.wait(20)
    server.should_exit = True
    print("openenv: four conversations as the server plays them, and its state at their ends")


main()
