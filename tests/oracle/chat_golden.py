"""Write tests/golden/chat.json: conversations rendered by jinja2 in the settings of transformers, and their ids.

Usage: python tests/oracle/chat_golden.py SHARED_DATA > tests/golden/chat.json
       python tests/oracle/chat_golden.py constructs > tests/golden/chat_constructs.json
The second form renders the small templates of chat_constructs.py: source, and text or error true.
Each entry: template (file under SHARED_DATA), messages, options, and text, or error true where it raises. Entries
of templates with a tokenizer beside them have ids of the joined text (contents hold no special tokens).
"""
import json
import sys

import chat_compare
import chat_constructs

TEMPLATES = [
    "chat_templates/Qwen-Qwen2.5-7B-Instruct.jinja",
    "chat_templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja",
    "chat_templates/meta-llama-Llama-3.1-8B-Instruct.jinja",
    "chat_templates/meta-llama-Llama-3.2-3B-Instruct.jinja",
    "tokenizers/added-tokens-edge/tokenizer_config.json",
    "tokenizers/minimind-6400/tokenizer_config.json",
    "tokenizers/qwen2/tokenizer_config.json",
    "tokenizers/qwen3/tokenizer_config.json",
    "tokenizers/qwen3/tokenizer_config.coder.json",
    "tokenizers/qwen3/tokenizer_config.thinking2507.json",
    "tokenizers/torchtitan-tiny/tokenizer_config.json",
    "weights/arithmetic_sequence/tokenizer_config.json",
]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": " The weather \"now\".\n",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "a city\u2019s name", "max-length": 40},
        "unit": {"type": "string", "enum": ["C", "F"], "default": None, "x": {"a": [1, 2.5, True]}}}},
    "return": {"type": "number"}}}]
CALL = [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "n": "3"}}}]
CONVERSATIONS = [
    ([say("user", "2,3:9,4")], {}),
    ([say("user", "What is 2+2?"), say("assistant", "4"), say("user", " And 3+3?\n")], {}),
    ([say("system", "Be brief.\n"), say("user", "\u4f60\u597d, it's  me \U0001f600")], {}),
    ([say("system", "s"), say("user", "a"), say("assistant", "<think>\nhm\n</think>\n\nb"), say("user", "c"),
      say("assistant", "\n\nd\n")], {"add_generation_prompt": False}),
    ([say("user", "q"), say("assistant", "r")], {"variables": {"enable_thinking": False, "open_thinking": True}}),
    ([say("user", "weather?"), say("assistant", "", tool_calls=CALL), say("tool", "12"), say("user", "thanks")],
     {"variables": {"tools": TOOLS}}),
    ([say("user", "date?")], {"date": "2025-03-09"}),
    ([], {}),
]


def source_of(data, path):
    with open(f"{data}/{path}", encoding="utf-8", newline="") as f:
        return f.read() if path.endswith(".jinja") else json.load(f)["chat_template"]


def render(source, tokens, messages, options):
    env = chat_compare.environment(options.get("date"))
    variables = {"tools": None, "documents": None, **tokens, **options.get("variables", {})}
    return env.from_string(source).render(
        messages=messages, add_generation_prompt=options.get("add_generation_prompt", True), **variables)


def constructs():
    out = []
    for source in chat_constructs.SOURCES:
        entry = {"source": source}
        try:
            entry["text"] = render(source, {}, chat_constructs.MESSAGES, {"date": chat_compare.DATE})
        except Exception as e:
            print(repr(source), type(e).__name__, e, file=sys.stderr)
            entry["error"] = True
        out.append(entry)
    return out


def main():
    data, out = sys.argv[1], []
    if data == "constructs":
        print("[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in constructs()) + "\n]")
        return
    import tokenizers
    for path in TEMPLATES:
        tokens, tokenizer = {}, None
        folder = path.rsplit("/", 1)[0]
        if path == folder + "/tokenizer_config.json" and folder.startswith("tokenizers"):
            config = json.load(open(f"{data}/{path}", encoding="utf-8"))
            if "added-tokens-edge" not in path:
                roles = ("bos", "eos", "pad", "unk")
                tokens = {r + "_token": config[r + "_token"] for r in roles if config.get(r + "_token")}
                tokenizer = tokenizers.Tokenizer.from_file(f"{data}/{folder}/tokenizer.json")
        if "arithmetic" in path:
            tokens = {"sep_token": "S", "eos_token": "E", "pad_token": "P", "unk_token": "U"}
        for messages, options in CONVERSATIONS:
            entry = {"template": path, "messages": messages, "options": options}
            try:
                entry["text"] = render(source_of(data, path), tokens, messages, options)
                if tokenizer and "torchtitan" not in path:
                    entry["ids"] = tokenizer.encode(entry["text"], add_special_tokens=False).ids
            except Exception as e:  # a refusal, or an undefined value: we must fail too
                print(path, type(e).__name__, e, file=sys.stderr)
                entry["error"] = True
            out.append(entry)
    print("[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in out) + "\n]")


main()
