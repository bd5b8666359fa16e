"""Compare our ids and decoding with those of Hugging Face's `tokenizers` on random text.

Usage: python tests/oracle/tokenizer_compare.py TEXT_LINES FOLDER [CHARACTERS]
TEXT_LINES is the built program tests/oracle/text_lines; FOLDER holds a tokenizer.json. Prints what differs, and counts;
the exit status is 1 where anything does. What we refuse (a character that has no token) and theirs drops is counted apart.
"""
import json
import random
import subprocess
import sys

import tokenizers

AWKWARD = ["\u2581", "\u2581\u2581", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u0085", "\u200b", "\ufeff", "\u0000", "\u0001", "\x7f",
           "\u00e9", "e\u0301", "\u00f8", "\u4f60", "\u597d", "\u4e16", "\U0001f600", "\U0010ffff", "\uffff", "\ufffd", "\u0e33", "\ud7a3", "<0x41>", "<0xE4>",
           "<", ">", "|", "the", " the", "cat", "dog", "cats", "a", "b", "Z", "0", "12", ".", ",", "'s", "\"", "(", "def "]


def texts(rng, n, special):
    alphabet = AWKWARD + special * 2
    while n > 0:
        kind = rng.random()
        size = rng.choice([0, 1, 2, 3, 5, 8, 13, 40, 200])
        if kind < 0.7:
            s = "".join(rng.choice(alphabet) for _ in range(size))
        elif kind < 0.9:
            s = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(size))
        else:
            s = " ".join(rng.choice(["the", "cat", "sat", "caf\u00e9", "12", "x+1", *special]) for _ in range(size))
        n -= len(s) + 1
        yield s


def main():
    t = tokenizers.Tokenizer.from_file(sys.argv[2] + "/tokenizer.json")
    budget = int(sys.argv[3]) if len(sys.argv) > 3 else 200000
    program = subprocess.Popen([sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(q):
        program.stdin.write(json.dumps(q) + "\n")
        program.stdin.flush()
        line = program.stdout.readline()
        return json.loads(line) if line else sys.exit(f"{sys.argv[2]}: refused")

    special = [a.content for a in t.get_added_tokens_decoder().values()][:40]
    rng, n, characters, refused, wrong = random.Random(7), 0, 0, 0, 0
    for s in texts(rng, budget, special):
        as_text, frame = rng.random() < 0.3, rng.random() < 0.3
        t.encode_special_tokens = as_text
        want = t.encode(s, add_special_tokens=frame).ids
        got = ask({"encode": s, "special": not as_text, "frame": frame})
        n, characters = n + 1, characters + len(s)
        if "error" in got:
            refused += 1
            continue
        if got["ids"] != want:
            wrong += 1
            if wrong < 6:
                print(f"ids of {s!r} {'as text' if as_text else ''}\n  want {want}\n  got  {got['ids']}")
        skip = rng.random() < 0.5
        cut = rng.randrange(len(want) + 1)
        for ids in (want, want[cut:], [rng.randrange(t.get_vocab_size()) for _ in range(rng.randrange(6))]):
            text = t.decode(ids, skip_special_tokens=skip)
            mine = ask({"decode": ids, "skip_special": skip})["text"]
            if isinstance(mine, list) or "\ufffd" in text:
                continue  # bytes that are no text: theirs become U+FFFD, ours stay
            if mine != text:
                wrong += 1
                if wrong < 6:
                    print(f"text of {ids}\n  want {text!r}\n  got  {mine!r}")
    program.stdin.close()
    print(f"{sys.argv[2]}: {n} texts, {characters} characters: {refused} refused, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
