"""Write tests/golden/mtp/NAME/{config.json,model.safetensors}: models of tests/golden/model with a random layer that
predicts a further token, and what that gives, in float64. transformers leaves these layers out, so they are computed here,
from the paper (DeepSeek-V3, arXiv:2412.19437, section 2.2) and from what vLLM does (deepseek_mtp, glm4_moe_mtp, qwen3_5_mtp):

  x_p = W [norm(embedding of token p + 1); norm'(h_p)]      h_p: behind the model's final norm
  y = one layer over x, at positions p;  logits of token p + 2 = output matrix of norm''(y_p)

and, for the token after that, the same with y_p in the place of h_p (Qwen: norm''(y_p)) at position p + 1.

h is what transformers computed: golden.logits of the model over its output matrix, which has more rows than columns. Where
all layers are attention, the layers of this script are tried on the model itself first. Tensors beside the weights:

  golden.ids [T], golden.offset [n + 1], golden.hidden [T, H]
  golden.draft_logits [T - n, V]   at every position of each sequence but its last
  golden.drafted [n, 3]            what is drafted behind each sequence, the most probable each
  golden.further_logits [n 2, V]   of the second and the third of them

greedy.jsonl has responses of models all of whose layers are attention, sampled greedily with drafts, and how many tokens were
drafted and accepted: a line for each prompt, in the characters of graphs/quickstart, and number of tokens of a draft.
"""
import json
import os
import struct
import sys

import numpy as np

CASES = {"qwen3_5_text": 1, "glm4_moe": 2, "deepseek_v3": 3, "qwen3_next": 4}
PASSES = 3
SPECIAL, CHARACTERS = 4, "0123456789+="  # of graphs/quickstart
PROMPTS, RESPONSE = ["12+34=", "9+87="], 40


def read(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = body[slice(*t["data_offsets"])]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            assert t["dtype"] == "F32", t
            x = np.frombuffer(raw, "<f4")
        out[name] = (t["dtype"], x.reshape(t["shape"]).astype(np.float64))
    return out


def bf16(x):
    """Rounded to bf16, to nearest even: the values."""
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, x) in tensors.items():
        x = np.ascontiguousarray(x, np.float32)
        raw = (x.view(np.uint32) >> 16).astype("<u2").tobytes() if dtype == "BF16" else x.tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Model:
    def __init__(self, config, weights):
        self.c, self.w = config, weights
        self.plus_one = config["model_type"].startswith("qwen3_")
        self.eps = config["rms_norm_eps"]

    def norm(self, x, name, eps=None, plus_one=None):
        w = self.w[name] + (self.plus_one if plus_one is None else plus_one)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + (eps or self.eps)) * w

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def rope(self):
        """inverse frequencies, a factor on cosines and sines, one on scores"""
        c = self.c
        if "qk_rope_head_dim" in c:
            dims, theta = c["qk_rope_head_dim"], c["rope_theta"]
        else:
            p = c.get("rope_parameters") or c
            dims, theta = int(c["head_dim"] * p["partial_rotary_factor"]), p["rope_theta"]
        inv = theta ** -(np.arange(0, dims, 2) / dims)
        y = c.get("rope_scaling")
        if not y:
            return inv, 1.0, 1.0
        assert y["rope_type"] == "yarn"

        def border(turns):
            return dims * np.log(y["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (2 * np.log(theta))

        def mscale(m):
            return 0.1 * m * np.log(y["factor"]) + 1

        low, high = max(np.floor(border(y["beta_fast"])), 0), min(np.ceil(border(y["beta_slow"])), dims - 1)
        ramp = np.clip((np.arange(dims // 2) - low) / (high - low if high != low else 0.001), 0, 1)
        return (inv / y["factor"] * ramp + inv * (1 - ramp), mscale(y["mscale"]) / mscale(y["mscale_all_dim"]),
                mscale(y["mscale_all_dim"]) ** 2)

    def rotate(self, x, first, interleaved):
        """x [T, heads, dims] from position first on; the last dimension's first ones are rotated"""
        inv, factor, _ = self.rope()
        angle = np.outer(first + np.arange(len(x)), inv)[:, None]
        cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
        n = len(inv)
        a, b = (x[..., 0:2 * n:2], x[..., 1:2 * n:2]) if interleaved else (x[..., :n], x[..., n:2 * n])
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * n:]], -1)

    def heads(self, at, x, first):
        """queries, keys, values [T, heads, dims] and what the output is multiplied with"""
        c, t = self.c, len(x)
        d = c["head_dim"]
        q, k, v = (self.linear(x, f"{at}self_attn.{n}_proj").reshape(t, -1, d) for n in "qkv")
        gate = 1
        if self.plus_one:  # of each head the query, then its gate
            q = self.linear(x, at + "self_attn.q_proj").reshape(t, -1, 2 * d)
            q, gate = q[..., :d], sigmoid(q[..., d:])
        q, k = (self.norm(y, f"{at}self_attn.{n}_norm.weight") for n, y in (("q", q), ("k", k)))
        repeat = q.shape[1] // k.shape[1]
        q, k = self.rotate(q, first, False), self.rotate(k, first, False)
        return q, np.repeat(k, repeat, 1), np.repeat(v, repeat, 1), gate, d ** -0.5

    def latent_heads(self, at, x, first):
        c, t = self.c, len(x)
        heads, nope, rope, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        at += "self_attn."
        q = self.linear(self.norm(self.linear(x, at + "q_a_proj"), at + "q_a_layernorm.weight", 1e-6), at + "q_b_proj")
        q = q.reshape(t, heads, nope + rope)
        down = self.linear(x, at + "kv_a_proj_with_mqa")
        up = self.linear(self.norm(down[:, :rank], at + "kv_a_layernorm.weight", 1e-6), at + "kv_b_proj")
        up = up.reshape(t, heads, -1)
        turned = self.rotate(down[:, None, rank:], first, True)
        q = np.concatenate([q[..., :nope], self.rotate(q[..., nope:], first, True)], -1)
        k = np.concatenate([up[..., :nope], np.repeat(turned, heads, 1)], -1)
        return q, k, up[..., nope:], 1, (nope + rope) ** -0.5 * self.rope()[2]

    def attention(self, at, x, first, cache):
        find = self.latent_heads if "kv_lora_rank" in self.c else self.heads
        q, k, v, gate, scale = find(at, x, first)
        cache.append((k, v))
        k, v = (np.concatenate([c[i] for c in cache]) for i in range(2))
        score = np.einsum("thd,shd->hts", q, k) * scale
        score[:, first + np.arange(len(x))[:, None] < np.arange(len(k))] = -np.inf
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = np.einsum("hts,shd->thd", p, v) * gate
        return self.linear(out.reshape(len(x), -1), at + "self_attn.o_proj")

    def dense(self, at, x):
        gate = self.linear(x, at + "gate_proj")
        return self.linear(gate * sigmoid(gate) * self.linear(x, at + "up_proj"), at + "down_proj")

    def choose(self, at, x):
        """the experts of one token, and their weights"""
        c = self.c
        z = self.linear(x, at + "gate")
        if "num_experts" in c:
            p = np.exp(z - z.max())
            best = np.argsort(-p)[:c["num_experts_per_tok"]]
            return best, p[best] / p[best].sum()
        score = sigmoid(z)
        choice = score + self.w[at + "gate.e_score_correction_bias"]
        groups = choice.reshape(c["n_group"], -1)
        keep = np.argsort(-np.sort(groups, -1)[:, -2:].sum(-1))[:c["topk_group"]]
        masked = np.full_like(groups, -np.inf)
        masked[keep] = groups[keep]
        best = np.argsort(-masked.ravel())[:c["num_experts_per_tok"]]
        return best, score[best] / score[best].sum() * c.get("routed_scaling_factor", 1)

    def mlp(self, at, x):
        at += "mlp."
        if at + "gate.weight" not in self.w:
            return self.dense(at, x)
        out = np.zeros_like(x)
        for t, row in enumerate(x):
            for e, weight in zip(*self.choose(at, row)):
                out[t] += weight * self.dense(f"{at}experts.{e}.", row)
        if "num_experts" in self.c:
            return out + sigmoid(self.linear(x, at + "shared_expert_gate")) * self.dense(at + "shared_expert.", x)
        return out + self.dense(at + "shared_experts.", x)

    def layer(self, at, x, first, cache):
        x = x + self.attention(at, self.norm(x, at + "input_layernorm.weight"), first, cache)
        return x + self.mlp(at, self.norm(x, at + "post_attention_layernorm.weight"))

    def hidden(self, ids):
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(f"model.layers.{i}.", x, 0, [])
        return self.norm(x, "model.norm.weight")

    def logits(self, ids):
        return self.hidden(ids) @ self.w["lm_head.weight"].T


class Ahead:
    """The layer that predicts a further token, over one sequence."""

    def __init__(self, model, names):
        self.m, self.n, self.cache, self.at = model, names, [], 0

    def step(self, ids, hidden):
        m, n = self.m, self.n
        e = m.norm(m.w["model.embed_tokens.weight"][ids], n["embed"])
        x = np.concatenate([e, m.norm(hidden, n["hidden"])], -1) @ m.w[n["in"]].T
        y = m.layer(n["layer"], x, self.at, self.cache)
        self.at += len(x)
        normed = m.norm(y, n["norm"])
        return normed @ m.w["lm_head.weight"].T, normed if m.plus_one else y


def drafts(model, names, ids, n):
    """n tokens behind the last of ids"""
    ahead = Ahead(model, names)
    hidden, ids, out = model.hidden(ids)[:-1], ids[1:], []
    for _ in range(n):
        z, hidden = ahead.step(ids, hidden)
        hidden = hidden[-1:]
        ids = z[-1:].argmax(-1)
        out.append(int(ids[0]))
    return out


def greedy(model, names, prompt, most, tokens):
    """One response, and how its drafts go: a sequence whose drafts give nothing k times in a row rests 2^k - 1 steps."""
    response, draft, drafted, accepted, steps, misses, rest = [], [], 0, 0, 0, 0, 0
    while len(response) < most:
        fed = np.array(prompt + response + draft)
        best = model.logits(fed)[-1 - len(draft):].argmax(-1)
        right = 0
        while right < len(draft) and best[right] == draft[right]:
            right += 1
        response += [int(t) for t in best[:right + 1]]
        steps, drafted, accepted = steps + 1, drafted + len(draft), accepted + right
        if draft:
            misses = 0 if right else min(misses + 1, 5)
            rest = 2 ** misses - 1
        wanted = min(tokens, most - len(response) - 1)
        draft, rest = (drafts(model, names, np.array(prompt + response), wanted), rest) if wanted > 0 and not rest else (
            [], max(rest - 1, 0))
    return dict(response=response, drafted=drafted, accepted=accepted, steps=steps)


def names_of(config):
    if config["model_type"].startswith("qwen3_"):
        return dict(layer="mtp.layers.0.", embed="mtp.pre_fc_norm_embedding.weight", hidden="mtp.pre_fc_norm_hidden.weight",
                    norm="mtp.norm.weight", **{"in": "mtp.fc.weight"})
    at = f"model.layers.{config['num_hidden_layers']}."
    return dict(layer=at, embed=at + "enorm.weight", hidden=at + "hnorm.weight", norm=at + "shared_head.norm.weight",
                **{"in": at + "eh_proj.weight"})


def draw(rng, config, tensors, names):
    """Weights: of the layer as the model's last one of attention has them, its outputs small."""
    plus_one = config["model_type"].startswith("qwen3_")
    h = config["hidden_size"]
    last = sorted(name.split("self_attn.")[0] for name in tensors if "self_attn." in name)[-1]
    out = {}

    def norm(shape):
        return (0 if plus_one else 1) + 0.2 * rng.standard_normal(shape)

    for name, (dtype, x) in tensors.items():
        if not name.startswith(last):
            continue
        rest = name[len(last):]
        small = 0.3 if rest.endswith(("o_proj.weight", "down_proj.weight")) else 1
        y = norm(x.shape) if "norm" in rest else small * 0.2 * rng.standard_normal(x.shape)
        out[names["layer"] + rest] = (dtype, bf16(y))
    for key in "embed", "hidden", "norm":
        out[names[key]] = ("BF16", bf16(norm((h,))))
    return out


def fit(rng, model, names, ids, offset, hidden):
    """W: what comes next of these sequences' hidden states, as well as one product and noise allow, so that some drafts
    are right."""
    x, y = [], []
    for a, b in zip(offset, offset[1:]):
        e = model.norm(model.w["model.embed_tokens.weight"][ids[a + 1:b]], names["embed"])
        x.append(np.concatenate([e, model.norm(hidden[a:b - 1], names["hidden"])], -1))
        y.append(hidden[a + 1:b])
    x, y = np.concatenate(x), np.concatenate(y)
    w = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y).T
    return bf16(w + 0.02 * rng.standard_normal(w.shape))


def main(folder, cases):
    runs = []
    for case, seed in CASES.items():
        if cases and case not in cases:
            continue
        source = os.path.join("tests/golden/model", case)
        tensors = read(os.path.join(source, "model.safetensors"))
        with open(os.path.join(source, "config.json")) as f:
            config = json.load(f)
        golden = {k[7:]: v[1] for k, v in tensors.items() if k.startswith("golden.")}
        tensors = {k: v for k, v in tensors.items() if not k.startswith(("golden.", "grad."))}
        names = names_of(config)
        rng = np.random.default_rng(seed)
        tensors |= draw(rng, config, tensors, names)
        model = Model(config, {k: v[1] for k, v in tensors.items()})
        ids, offset = golden["ids"].astype(int), golden["offset"].astype(int)
        if "linear_num_key_heads" not in config:
            own = np.concatenate([model.logits(ids[a:b]) for a, b in zip(offset, offset[1:])])
            assert abs(own - golden["logits"]).max() < 1e-4 * abs(own).max(), "the layers of this script are not the model's"
        hidden = golden["logits"] @ np.linalg.pinv(model.w["lm_head.weight"]).T
        assert abs(hidden @ model.w["lm_head.weight"].T - golden["logits"]).max() < 1e-5
        model.w[names["in"]] = fit(rng, model, names, ids, offset, hidden)
        tensors[names["in"]] = ("BF16", model.w[names["in"]])
        logits, drafted, further = [], [], []
        for a, b in zip(offset, offset[1:]):
            ahead = Ahead(model, names)
            z, h = ahead.step(ids[a + 1:b], hidden[a:b - 1])
            logits.append(z)
            drafted.append([z[-1].argmax()])
            for _ in range(PASSES - 1):
                z, h = ahead.step(np.array(drafted[-1][-1:]), h[-1:])
                further.append(z)
                drafted[-1].append(z[-1].argmax())
        tensors |= {"golden." + k: ("F32", v) for k, v in
                    dict(ids=golden["ids"], offset=golden["offset"], hidden=hidden, draft_logits=np.concatenate(logits),
                         drafted=np.array(drafted), further_logits=np.concatenate(further)).items()}
        config["mtp_num_hidden_layers" if names["layer"].startswith("mtp") else "num_nextn_predict_layers"] = 1
        path = os.path.join(folder, case)
        os.makedirs(path, exist_ok=True)
        write(os.path.join(path, "model.safetensors"), tensors)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")
        if "linear_num_key_heads" not in config:
            runs += [dict(model=case, prompt=text, tokens=n,
                          **greedy(model, names, [SPECIAL + CHARACTERS.index(c) for c in text], RESPONSE, n))
                     for text in PROMPTS for n in (1, 3)]
    if not cases:  # a line each
        with open(os.path.join(folder, "greedy.jsonl"), "w") as f:
            f.writelines(json.dumps(run) + "\n" for run in runs)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/mtp", sys.argv[2:])
