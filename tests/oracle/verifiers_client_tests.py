"""verifiers' own tests of its clients, with a model that graphrun serves in the place of what stands in for a server in them.

Usage: python tests/oracle/verifiers_client_tests.py GRAPHRUN TESTS
needs verifiers 0.1.14, pytest and pytest-asyncio (PyPI), and libmicrohttpd; TESTS: the folder `tests` of verifiers' source package
(pip download verifiers==0.1.14 --no-deps --no-binary :all:)

All tests of the clients for OpenAI's form run; those of Anthropic's do not. Most are about a client alone. In those that are about what a server does, its stand-in is
replaced by a client of OpenAI's that calls us: a wrong token is openai's AuthenticationError, a prompt that is too long is recognized as
one, and ids go to the route for ids, which answers. How often each called us is printed.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = ["test_client_auth_errors.py", "test_openai_chat_completions_token_client.py", "test_nemorl_client.py"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
called = {}


def make_model(graphrun):
    os.makedirs("tokenizer")
    tokenizer = json.loads((PROJECT / "tests/cli/model/tokenizer_config.json").read_text())
    tokenizer.update(chat_template=TEMPLATE, model_max_length=256)
    pathlib.Path("tokenizer/tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = json.loads((PROJECT / "tests/cli/model/config.json").read_text())
    config.update(max_position_embeddings=256)
    pathlib.Path("config.json").write_text(json.dumps(config))
    subprocess.run([graphrun, "init", "--config", "config.json", "--tokenizer", "tokenizer", "--seed", "1", "-o", "model"], check=True,
                   stdout=subprocess.DEVNULL)


def serve(graphrun, name, context, tokens):
    """Its process and URL."""
    served = subprocess.Popen([graphrun, "serve", "model", "--device", "cpu", "--set", f"nodes.rollout.serve.name={name}", "--set",
                               f"max_context={context}", "--set", f"max_tokens={tokens}"], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "GRAPHRUN_SERVE_TOKEN": "secret"})
    for line in served.stdout:
        if found := re.search(r" listens on ([^,]*),", line):
            return served, found.group(1)
    sys.exit(f"serve ended with status {served.wait()}")


class Live:
    """Puts clients of the servers into verifiers' test modules."""

    def __init__(self, url, short_url):
        self.url, self.short_url = url, short_url

    def client(self, what, url, token):
        from openai import AsyncOpenAI
        called[what] = called.get(what, 0) + 1
        return AsyncOpenAI(base_url=url, api_key=token, max_retries=0)

    def pytest_collection_modifyitems(self, items):
        live = self
        for module in {item.module for item in items}:
            if hasattr(module, "_FailingOpenAIClient"):
                module._FailingOpenAIClient = lambda: live.client("wrong token", live.url, "wrong")
            if hasattr(module, "_OverlongOpenAIChatClient"):
                module._OverlongOpenAIChatClient = lambda message: live.client("prompt that is too long", live.short_url, "secret")
            if hasattr(module, "_RecordingClient"):
                module._RecordingClient.post = lambda *args, **keys: live.post(*args, **keys)

    async def post(self, recording, path, body, cast_to, **keys):
        recording.calls.append({"path": path, "body": body, "cast_to": cast_to})
        said = await self.client("route for ids", self.url, "secret").post(path, body=body, cast_to=cast_to)
        assert said.choices[0].token_ids, said
        return {"ok": True}


def main():
    import pytest

    graphrun, tests = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_model(graphrun)
        servers = [serve(graphrun, "test-model", 64, 16), serve(graphrun, "gpt-test", 8, 4)]
        try:
            status = pytest.main(["-q", "-k", "not anthropic", "-p", "no:cacheprovider", "-o", "asyncio_mode=strict", *(str(tests / f) for f in FILES)],
                                 plugins=[Live(servers[0][1], servers[1][1])])
        finally:
            for process, _ in servers:
                process.terminate()
                process.wait()
        print(f"asked of us: {called}")
        assert set(called) == {"wrong token", "prompt that is too long", "route for ids"}, "a stand-in was not replaced"
        sys.exit(status)


main()
