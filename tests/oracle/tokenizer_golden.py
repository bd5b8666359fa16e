"""Write tests/golden/tokenizer.json: ids of awkward strings by Hugging Face's `tokenizers`.

Usage: python tests/oracle/tokenizer_golden.py SHARED_DATA > tests/golden/tokenizer.json
       python tests/oracle/tokenizer_golden.py tiny > tests/golden/tokenizer_tiny.json
The second form has the tokenizers of tokenizer_tiny.py themselves, and for random texts ids and what they decode to.
Needs tokenizers 0.21: 0.23 decodes an added token that is looked for in normalized text with the space before it that
normalization puts there, and no longer skips it where it is special.

`plain` has special tokens as text (encode_special_tokens), `special` as tokens. null: the library drops bytes
that the vocabulary has no token for, which we refuse.
"""
import json
import random
import sys
import unicodedata

import tokenizers

import tokenizer_compare
import tokenizer_tiny

STRINGS = [
    "", " ", "  ", "\n", "\n\n\n", " \n ", "\t\t x", "\r\n\r\nx", "a  b   c", "trailing   ", "   leading",
    "Hello, world!", "I'm you're we'LL 'S 'sx 'T don'T", "it\u2019s", "'\u017f '\u017ftop", "3.14159 12345 1e-6",
    "x=1;y=2", "def f(x):\n    return x**2\n", "\u00e9 e\u0301 \u0041\u030a \u212b \u00c5", "\u1e9b\u0323",
    "\u0958 \u0915\u093c", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "\u4e2d\u6587\u6d4b\u8bd5\uff0c\u4e00\u4e8c\u4e09\u3002",
    "\u65e5\u672c\u8a9e \u30ab\u3099", "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663", "\u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\ufb01\ufb02 \u2460 \u00bd \u2167",
    "\u00a0a\u00a0\u00a0b", "\u2003x\u2003\u2003y\u3000", "\u180ea \u180e\u180e b", "\u200b\u200bz \ufeff", "\u0085\u0085 x",
    "\u2028line\u2029par", "\x00\x01\x02", "\x1c\x1d a", "\x0b\x0c b", "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_end|><|im_end|>", "<|im_end", "|im_end|>", "<|endoftext|>", " <|endoftext|> ", "x<|endoftext|>y",
    "<think>\n\n</think>\n\n", "a<think>b", "<tool_call>{}</tool_call>", "<|im_<|im_start|>start|>", "#### 42",
    "$$\\frac{1}{2}$$", "\\boxed{\\sqrt{2}}", "https://example.org/?a=b&c=d#e", "snake_case CamelCase kebab-case",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                                                                    x",
    "----------------------------------------------------------------", "!?!?!?...\u2026\u2026", "''''''", "\"\"\"",
    "1,000,000.00", "a\u0300\u0301\u0302b", "\u0301start", "\u1100\u1161", "\ue000\uf8ff", "\U00020000\U0002a6df",
]


def random_strings(rng, n):
    alphabet = list("ab cd'ES 12\n\t.,<|>_") + ["\u00e9", "e\u0301", "\u4e2d", "\u0301", "\U0001f600", "\u00a0", "\u3000",
                                                "<|im_end|>", "<think>", "  ", "'ll", "\r\n", "\u0660", "\u1ffb"]
    return ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))) for _ in range(n)]


def encode(t, text):
    ids = t.encode(text, add_special_tokens=False).ids
    n = sum(len(t.id_to_token(i)) for i in ids)  # a character of the byte alphabet is a byte
    nfc = unicodedata.normalize("NFC", text) if t.normalizer else text
    return ids if n == len(nfc.encode()) else None


def tiny():
    out = {}
    for name, make in tokenizer_tiny.KINDS.items():
        t, rng, cases = make(), random.Random(3), []
        special = [a.content for a in t.get_added_tokens_decoder().values()]
        for text in [*STRINGS[:24], *tokenizer_compare.texts(rng, 1500, special)]:
            plain, frame = rng.random() < 0.3, rng.random() < 0.3
            t.encode_special_tokens = plain
            ids = t.encode(text, add_special_tokens=frame).ids
            back = [t.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
            if not any("\ufffd" in b for b in back):
                cases.append([text, not plain, frame, ids, *back])
        t.encode_special_tokens = False
        out[name] = {"file": t.to_str(), "cases": cases}
    return out


def main():
    data = sys.argv[1]
    if data == "tiny":
        print(json.dumps(tiny(), separators=(",", ":")).replace('],["', '],\n["'))
        return
    strings = STRINGS + random_strings(random.Random(1), 40)
    out = {"strings": strings}
    for name in ("qwen3", "qwen2", "minimind-6400", "gpt2", "torchtitan-tiny"):
        file = "tokenizer.with_type.json" if name == "gpt2" else "tokenizer.json"
        t = tokenizers.Tokenizer.from_file(f"{data}/tokenizers/{name}/{file}")
        out[name] = {}
        for key in ("special", "plain"):
            t.encode_special_tokens = key == "plain"
            out[name][key] = [encode(t, s) for s in strings]
    json.dump(out, sys.stdout, ensure_ascii=True, separators=(",", ":"))
    print()


main()
