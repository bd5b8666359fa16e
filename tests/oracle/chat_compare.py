"""Compare our rendering of chat templates with jinja2's, as transformers sets it up, over a folder of templates.

Usage: python tests/oracle/chat_compare.py TEXT_LINES FOLDER [-v]
TEXT_LINES is the built program tests/oracle/text_lines; FOLDER holds *.jinja files. Each template is rendered
over CONVERSATIONS, with and without a generation prompt. For each template one verdict:

    equal     every rendering is jinja2's, byte for byte; what it refuses we refuse
    refused   at least one that jinja2 renders we refuse, with a message that names the construct and its place
    wrong     another text, or a refusal that names nothing

Prints the counts and what was refused or wrong; the exit status is 1 where anything is wrong.
Needs jinja2. The settings are those of transformers' chat_template_utils.
"""
import collections
import datetime
import json
import pathlib
import subprocess
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATE = "2025-03-09"


class Generation(Extension):
    """{% generation %}: marks what the assistant wrote; its text is rendered as it is."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    @staticmethod
    def _pass(caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(date=DATE):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    if date:
        env.globals["strftime_now"] = datetime.datetime.fromisoformat(date).strftime
    return env


def say(role, content, **more):
    return {"role": role, "content": content, **more}


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": " The weather \"now\" & <then>.\n",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "a city\u2019s name", "max-length": 40},
        "unit": {"type": "string", "enum": ["C", "F"], "default": None, "x": {"a": [1, 2.5, True, {}, []]}},
        "days": {"type": ["integer", "null"], "description": "how many", "minimum": -1, "maximum": 1e16},
        "flags": {"type": "array", "items": {"type": "string", "enum": ["a"]}, "description": "list"},
        "deep": {"type": "object", "properties": {"in": {"type": "number"}}, "required": ["in"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True}}},
    "return": {"type": "number", "description": "degrees"}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]
CALL = [{"id": "call12345", "type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "K\u00f6ln", "n": "3", "deep": {"in": 1.5}, "flags": ["a", "b"], "on": True, "no": None}}}]
TEXT_CALL = [{"id": "call67890", "type": "function", "function": {
    "name": "now", "arguments": "{\"a\": \"<b>\", \"c\": 1}"}}]
TWO_CALLS = CALL + [{"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": {}}}]
IMAGE = [{"type": "text", "text": "look: "}, {"type": "image"}, {"type": "image_url", "image_url": {"url": "u"}},
         {"type": "text", "text": " there"}]

# (messages, variables)
CONVERSATIONS = [
    ([say("user", "2,3:9,4")], {}),
    ([say("user", "What is 2+2?"), say("assistant", "4"), say("user", " And 3+3?\n")], {}),
    ([say("system", "Be brief.\n"), say("user", "\u4f60\u597d, it's  me \U0001f600 <b>&amp;</b>")], {}),
    ([say("system", "s"), say("user", "a"), say("assistant", "<think>\nhm\n</think>\n\nb"), say("user", "c"),
      say("assistant", "\n\nd\n")], {}),
    ([say("system", "s"), say("user", "a"), say("assistant", "b", reasoning_content=" why "), say("user", "c"),
      say("assistant", "d", reasoning_content="so\n", thinking="t")], {}),
    ([say("user", "q"), say("assistant", "r")], {"enable_thinking": False, "open_thinking": True, "thinking": False}),
    ([say("system", "/no_think x"), say("user", "q /think")], {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ([say("user", "weather?"), say("assistant", "", tool_calls=CALL), say("tool", "12", tool_call_id="call12345", name="get_weather"),
      say("user", "thanks")], {"tools": TOOLS}),
    ([say("system", "help"), say("user", "weather?"), say("assistant", "I look.", tool_calls=CALL),
      say("tool", "{\"t\": 12}", tool_call_id="call12345", name="get_weather"), say("assistant", "12\u00b0")], {"tools": TOOLS}),
    ([say("user", "both?"), say("assistant", None, tool_calls=TWO_CALLS, reasoning_content="two"),
      say("tool", "12", tool_call_id="call12345", name="get_weather"), say("tool", "noon", tool_call_id="abcdefghi", name="now"),
      say("assistant", "12 at noon"), say("user", "ok")], {"tools": TOOLS}),
    ([say("user", "now?"), say("assistant", "", tool_calls=TEXT_CALL), say("tool", "noon", tool_call_id="call67890", name="now")],
     {"tools": TOOLS[1:]}),
    ([say("user", "tools?")], {"tools": TOOLS, "date_string": "26 Jul 2024", "enable_thinking": False}),
    ([say("system", "s"), say("user", "tools?")], {"tools": TOOLS, "tools_in_user_message": False}),
    ([say("user", "docs?")], {"documents": [{"title": "T", "text": "text", "contents": "c"}, {"title": "U", "text": "v"}]}),
    ([say("user", IMAGE), say("assistant", "a house")], {}),
    ([say("system", [{"type": "text", "text": "S"}]), say("user", [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}])], {}),
    ([say("user", ""), say("assistant", ""), say("user", " \n ")], {}),
    ([say("user", "a"), say("user", "b")], {}),
    ([say("assistant", "first"), say("user", "b")], {}),
    ([say("developer", "dev"), say("user", "b")], {}),
    ([say("user", "a", name="ann"), say("assistant", "b", name="bob", prefix=True)], {}),
    ([say("user", "a"), say("function", "r", name="f"), say("ipython", "i")], {}),
    ([say("weird", "?")], {}),
    ([say("user", None)], {}),
    ([{"role": "user"}], {}),
    ([{"role": "user", "content": "x"}, {"role": "assistant"}], {}),
    ([], {}),
    ([say("system", "only")], {}),
    ([say("user", "u\u0130\u00df\u01c5 \u00a0"), say("assistant", "[THINK]x[/THINK]y"), say("user", "{{ x }} {% y %}"),
      say("assistant", "<|channel|>analysis<|message|>z", thinking="hm", content_type="t")], {"add_vision_id": True}),
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def requests(source):
    for messages, variables in CONVERSATIONS:
        for prompt in (False, True):
            yield {"template": source, "messages": messages, "date": DATE, "add_generation_prompt": prompt,
                   "variables": {**TOKENS, **variables}}


def expected(template, q):
    try:
        variables = {"tools": None, "documents": None, **json.loads(json.dumps(q["variables"]))}
        return template.render(messages=json.loads(json.dumps(q["messages"])),
                               add_generation_prompt=q["add_generation_prompt"], **variables)
    except Exception as e:  # whatever stops jinja2 must stop us
        return e


def named(message):
    return "not supported" in message and message.startswith("chat_template:")


def compare(path, ask):
    """The verdict on one template, and the first message or difference."""
    source = path.read_bytes().decode()
    try:
        template = environment().from_string(source)
    except Exception as e:
        template = e
    verdict, why, n = "equal", "", 0
    for q in requests(source):
        want = template if isinstance(template, Exception) else expected(template, q)
        got = ask(q)
        n += isinstance(want, str)
        if got.get("text") == want or ("error" in got and isinstance(want, Exception)):
            continue
        if "error" in got and named(got["error"]):
            verdict, why = "refused", got["error"]
            continue
        return "wrong", f"{json.dumps(q['messages'])[:300]} {list(q['variables'])}\n  want {want!r}\n  got  {got.get('text', got.get('error'))!r}", n
    return verdict, why, n


def main():
    program = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(q):
        program.stdin.write(json.dumps(q) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    counts, rendered = collections.Counter(), 0
    for path in sorted(pathlib.Path(sys.argv[2]).glob("*.jinja")):
        verdict, why, n = compare(path, ask)
        counts[verdict] += 1
        rendered += n
        if verdict != "equal" or "-v" in sys.argv:
            print(f"{verdict:8} {path.name}: {why}")
    program.stdin.close()
    print(f"{sum(counts.values())} templates, {rendered} renderings: " + ", ".join(f"{counts[k]} {k}" for k in ("equal", "refused", "wrong")))
    return counts["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
