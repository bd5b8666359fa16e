"""usage: mtp_right.py FOLDER ids|hidden: make the layer of a random glm4_moe checkpoint that predicts a further token right.

Mixers and MLPs give nothing from here on, so the most probable token behind x is f(x), a function of x alone, and hidden
states are embeddings. The layer reads W [norm(e); norm(h)]. With `ids` W is [1 0], so that it gives f of the token that it is
given. With `hidden` W is [0 A], where A takes the embedding of each x to that of f(x): it gives f(f(x)) of the token before.
Either is right wherever what it reads is of the place that it should be of. fp32 tensors; needs nothing but Python.
"""
import array
import json
import math
import struct
import sys

folder, by = sys.argv[1:]
path = folder + "/model.safetensors"
with open(path, "rb") as file:
    begin = 8 + struct.unpack("<Q", file.read(8))[0]
    head = json.loads(file.read(begin - 8))
    data = array.array("f", file.read())
with open(folder + "/config.json", encoding="utf-8") as file:
    config = json.load(file)
tensors = {name: t for name, t in head.items() if name != "__metadata__"}


def at(name):
    return tensors[name]["data_offsets"][0] // 4


def rows(name):
    n, width = tensors[name]["shape"]
    return [data[at(name) + i * width : at(name) + (i + 1) * width] for i in range(n)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def normed(x):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + config.get("rms_norm_eps", 1e-5))
    return [v * scale for v in x]


def solved(matrix, right):
    """X of matrix X = right, by elimination with pivots."""
    n = len(matrix)
    m = [list(a) + list(b) for a, b in zip(matrix, right)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(m[r][i]))
        m[i], m[pivot] = m[pivot], m[i]
        m[i] = [v / m[i][i] for v in m[i]]
        for r in range(n):
            if r != i:
                m[r] = [a - m[r][i] * b for a, b in zip(m[r], m[i])]
    return [row[n:] for row in m]


for name, t in tensors.items():
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        first, end = (offset // 4 for offset in t["data_offsets"])
        data[first:end] = array.array("f", bytes(4 * (end - first)))
embedded = [normed(x) for x in rows("model.embed_tokens.weight")]
head_rows = rows("lm_head.weight")
follows = [max(range(len(head_rows)), key=lambda v: dot(head_rows[v], x)) for x in embedded]
gram = [[dot(a, b) for b in embedded] for a in embedded]
target = [embedded[f] for f in follows]
inner = solved(gram, target)  # A^T = E^T inner, E's rows being embeddings
enter = "model.layers.%d.eh_proj.weight" % config["num_hidden_layers"]
width = config["hidden_size"]
for r in range(width):
    for c in range(width):
        place = at(enter) + r * 2 * width + c
        data[place] = float(r == c) if by == "ids" else 0
        data[place + width] = dot([e[c] for e in embedded], [i[r] for i in inner]) if by == "hidden" else 0
with open(path, "r+b") as file:
    file.seek(begin)
    data.tofile(file)
