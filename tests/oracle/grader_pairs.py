#!/usr/bin/env python3
"""Pairs of a true answer and a response for `rule: math`, right and wrong, with sympy as the referee.

    python3 tests/oracle/grader_pairs.py --seed 1 --n 4000 -o pairs.jsonl [--math-verify]

Every pair is made as two sympy objects and two texts. Whether they are equal is what sympy says about the objects, not
what the maker meant. Wrong pairs are near misses: another digit, sign, order, bracket, name, function or bound.
--math-verify adds what python's math-verify says (pip install math-verify). The committed golden,
tests/golden/grader_pairs.jsonl, is `--seed 20261122 --n 900`; it was not used to tune the grader. docs/GRADERS.md says
which seeds were.
"""
import argparse
import json
import random
from fractions import Fraction

import sympy as sp

X, Y, A, B, N = sp.symbols("x y a b n", real=True)


# ---- texts of numbers ----------------------------------------------------------------------------------------------


def thousands(n, r):
    s = f"{abs(n):,}"
    sep = r.choice([",", "{,}", ",\\!", "\\,", " "])
    return ("-" if n < 0 else "") + s.replace(",", sep)


def text_int(n, r):
    forms = [str(n), str(n), f"{n}.0", f"{n}."]
    if abs(n) > 999:
        forms += [thousands(n, r)] * 3
    return r.choice(forms)


def text_fraction(q, r):
    p, d, sign = abs(q.p), q.q, "-" if q < 0 else ""
    k = r.choice([1, 1, 2, 3])
    forms = [f"{sign}\\frac{{{p * k}}}{{{d * k}}}", f"{sign}\\dfrac{{{p}}}{{{d}}}", f"{sign}{p}/{d}"]
    if d == 1:
        return text_int(int(q), r)
    if p < 10 and d < 10:
        forms.append(f"{sign}\\frac{p}{d}")
    if p > d:
        w, rest = divmod(p, d)
        forms += [f"{sign}{w}\\frac{{{rest}}}{{{d}}}", f"{sign}{w} {rest}/{d}"]
    dd = d
    for f in (2, 5):
        while dd % f == 0:
            dd //= f
    if dd == 1:
        forms += [decimal(Fraction(p, d), sign)]
    elif d in (3, 9, 11, 99, 33):
        forms.append(sign + repeating(p, d))
    return r.choice(forms)


def decimal(f, sign):
    k = 0
    while (f * 10**k).denominator != 1:
        k += 1
    s = str(int(f * 10**k)).rjust(k + 1, "0")
    return sign + (s[: len(s) - k] + "." + s[len(s) - k :] if k else s)


def repeating(p, d):
    w, rest = divmod(p, d)
    n = 1
    while (10**n - 1) % d:
        n += 1
    digits = str(rest * (10**n - 1) // d).rjust(n, "0")
    return f"{w}.\\overline{{{digits}}}"


# ---- families: each gives (truth object, truth text, response object, response text) ------------------------------


def integers(r):
    n = r.choice([r.randint(-99, 99), r.randint(1000, 10**7), r.randint(10**9, 10**12), r.randint(10**17, 10**40)])
    m = n
    if r.random() < 0.5:
        digits = list(str(n))
        i = r.randrange(len(digits))
        if digits[i] != "-":
            digits[i] = str((int(digits[i]) + r.randint(1, 9)) % 10)
        m = r.choice([int("".join(digits)), n + 1, n - 1, -n, n * 10])
    return sp.Integer(n), str(n), sp.Integer(m), text_int(m, r)


def fractions(r):
    q = sp.Rational(r.randint(1, 60) * r.choice([1, -1]), r.choice([2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 25, 33, 99, 125]))
    p = q
    if r.random() < 0.5:
        p = r.choice([1 / q, q + sp.Rational(1, q.q), -q, q + 1, q / 10, sp.Rational(int(str(abs(q.p)) + "1"), q.q)])
    return q, text_fraction(q, r), p, text_fraction(p, r)


def concatenated(r):
    """A mixed number and what it reads as without its space."""
    w, d = r.randint(1, 40), r.randint(2, 12)
    t = r.randint(1, d - 1)
    q = sp.Rational(w * d + t, d)
    other = r.choice([sp.Rational(int(f"{w}{t}"), d), sp.Rational(w * t, d), q, q])
    return q, r.choice([f"{w} {t}/{d}", f"{w}\\frac{{{t}}}{{{d}}}"]), other, text_fraction(other, r)


def tiny(r):
    e = r.randint(20, 120)
    q = sp.Rational(1, 2**e)
    p = r.choice([q, sp.Integer(0), sp.Rational(1, 2 ** (e + 1)), q])
    return q, f"\\frac{{1}}{{2^{{{e}}}}}", p, "0" if p == 0 else f"2^{{-{sp.log(1 / p, 2)}}}"


def surds(r):
    a, b, c = r.randint(-9, 9), r.choice([1, 2, 3, -2, 5]), r.choice([2, 3, 5, 6, 7, 10])
    d = r.randint(1, 6)
    v = (a + b * sp.sqrt(c)) / d
    w = v
    if r.random() < 0.5:
        w = r.choice([(a - b * sp.sqrt(c)) / d, (a + b * sp.sqrt(c + 1)) / d, (a + 1 + b * sp.sqrt(c)) / d, v * 2, -v])
    forms = [sp.latex(w), sp.latex(sp.expand(w)), sp.latex(sp.radsimp(1 / w)) if w != 0 else "0"]
    i = r.randrange(2)
    return v, sp.latex(v), w, forms[i]


def nested(r):
    p, q = r.randint(2, 12), r.randint(2, 12)
    v = sp.sqrt(p) + sp.sqrt(q)
    t = f"\\sqrt{{{p}}}+\\sqrt{{{q}}}"
    w, s = r.choice(
        [
            (v, f"\\sqrt{{{p + q}+2\\sqrt{{{p * q}}}}}"),
            (sp.sqrt(p + q), f"\\sqrt{{{p + q}}}"),
            (sp.sqrt(p + q + 2 * sp.sqrt(p * q + 1)), f"\\sqrt{{{p + q}+2\\sqrt{{{p * q + 1}}}}}"),
        ]
    )
    return v, t, w, s


def polynomial(r, var=X):
    return sum(r.randint(-6, 6) * var**i for i in range(r.randint(2, 4))) + var ** r.randint(1, 3)


def polynomials(r):
    p = sp.expand(polynomial(r) * (X + r.randint(-5, 5)))
    q = p
    if r.random() < 0.5:
        q = r.choice([p + 1, -p, p + X, sp.expand(p.subs(X, -X)), sp.expand(p.subs(X, X + 1)), p * 2])
    s = r.choice([sp.factor(q), sp.expand(q), sp.horner(q) if q.has(X) else q])
    return p, sp.latex(p), q, sp.latex(s)


def rationals(r):
    p = (r.randint(1, 5) * X + r.randint(-5, 5)) / (X + r.choice([-3, -2, -1, 1, 2, 3]))
    q = r.choice([p, p, 1 / p, p + 1, p.subs(X, -X), p.subs(X, Y)])
    s = r.choice([sp.apart(q), sp.together(q), q])
    return p, sp.latex(p), q, sp.latex(s)


def absolutes(r):
    pairs = [
        (sp.Abs(X), "|x|", X, "x"),
        (sp.Abs(X), "|x|", sp.sqrt(X**2), "\\sqrt{x^2}"),
        (X, "x", sp.sqrt(X**2), "\\sqrt{x^{2}}"),
        (sp.Abs(X - 1), "|x-1|", sp.Abs(1 - X), "|1-x|"),
        (sp.Abs(X - 1), "|x-1|", X - 1, "x-1"),
        (sp.Abs(X) ** 2, "|x|^2", X**2, "x^2"),
        (X * sp.Abs(X), "x|x|", X**2, "x^2"),
        (sp.Abs(X * Y), "|xy|", sp.Abs(X) * sp.Abs(Y), "|x||y|"),
        (sp.Abs(X + Y), "|x+y|", sp.Abs(X) + sp.Abs(Y), "|x|+|y|"),
        (sp.log(X**2), "\\ln x^2", 2 * sp.log(X), "2\\ln x"),
        (sp.sqrt(X) * sp.sqrt(Y), "\\sqrt{x}\\sqrt{y}", sp.sqrt(X * Y), "\\sqrt{xy}"),
        (sp.floor(X), "\\lfloor x\\rfloor", X, "x"),
        (sp.floor(X), "\\lfloor x\\rfloor", sp.ceiling(X), "\\lceil x\\rceil"),
        (sp.ceiling(X), "\\lceil x\\rceil", -sp.floor(-X), "-\\lfloor -x\\rfloor"),
        (sp.floor(sp.Rational(7, 2)), "\\lfloor\\frac{7}{2}\\rfloor", sp.Integer(3), "3"),
        (sp.floor(sp.Rational(-7, 2)), "\\lfloor-\\frac{7}{2}\\rfloor", sp.Integer(-3), "-3"),
    ]
    k = r.randint(2, 9)
    a, t, b, s = r.choice(pairs)
    times = r.random() < 0.5 and not s[0] in "-0123456789"
    return (a * k, f"{k}{t}", b * k, f"{k}{s}") if times else (a, t, b, s)


def trigonometry(r):
    k = r.randint(2, 9)
    f, name = r.choice([(sp.sin, "sin"), (sp.cos, "cos"), (sp.tan, "tan"), (sp.cot, "cot"), (sp.sec, "sec")])
    g, gname = r.choice([(sp.sin, "sin"), (sp.cos, "cos"), (sp.tan, "tan"), (sp.cot, "cot"), (sp.csc, "csc")])
    pairs = [
        (f(k * X), f"\\{name} {k}x", f(k * X), f"\\{name}({k}x)"),
        (f(k * X), f"\\{name} {k}x", k * f(X), f"{k}\\{name} x"),
        (f(X), f"\\{name} x", g(X), f"\\{gname} x"),
        (f(X) ** 2, f"\\{name}^2 x", f(X) ** 2, f"(\\{name} x)^2"),
        (f(X) ** 2, f"\\{name}^2 x", f(X**2), f"\\{name} x^2"),
        (sp.sin(2 * X), "\\sin 2x", 2 * sp.sin(X) * sp.cos(X), "2\\sin x\\cos x"),
        (sp.sin(2 * X), "\\sin 2x", 2 * sp.sin(X), "2\\sin x"),
        (1 - sp.sin(X) ** 2, "1-\\sin^2 x", sp.cos(X) ** 2, "\\cos^{2} x"),
        (sp.cot(X), "\\cot x", sp.cos(X) / sp.sin(X), "\\frac{\\cos x}{\\sin x}"),
        (sp.tan(X), "\\tan x", sp.cot(X), "\\cot x"),
        (sp.pi / k, f"\\frac{{\\pi}}{{{k}}}", sp.pi / k, f"\\frac{{1}}{{{k}}}\\pi"),
        (sp.pi / k, f"\\frac{{\\pi}}{{{k}}}", 180 / sp.Integer(k), f"{sp.Rational(180, k)}"),
        (sp.sin(sp.pi / 6), "\\sin\\frac{\\pi}{6}", sp.Rational(1, 2), "0.5"),
        (sp.asin(1), "\\arcsin 1", sp.pi / 2, "\\frac{\\pi}{2}"),
        (sp.atan(X), "\\arctan x", sp.asin(X), "\\arcsin x"),
        (sp.atan(X), "\\tan^{-1} x", 1 / sp.tan(X), "\\frac{1}{\\tan x}"),
    ]
    return r.choice(pairs)


def logarithms(r):
    k, m = r.randint(2, 9), r.randint(2, 9)
    pairs = [
        (sp.log(k), f"\\ln {k}", sp.log(k), f"\\ln({k})"),
        (sp.log(k**m), f"\\ln {k**m}", m * sp.log(k), f"{m}\\ln {k}"),
        (sp.log(k) + sp.log(m), f"\\ln {k}+\\ln {m}", sp.log(k * m), f"\\ln {k * m}"),
        (sp.log(k) + sp.log(m), f"\\ln {k}+\\ln {m}", sp.log(k + m), f"\\ln {k + m}"),
        (sp.log(k, m), f"\\log_{{{m}}} {k}", sp.log(k) / sp.log(m), f"\\frac{{\\ln {k}}}{{\\ln {m}}}"),
        (sp.log(k, m), f"\\log_{{{m}}} {k}", sp.log(m, k), f"\\log_{{{k}}} {m}"),
        (sp.log(k, 10), f"\\log {k}", sp.log(k), f"\\ln {k}"),
        (sp.exp(k), f"e^{{{k}}}", sp.E**k, f"e^{k}"),
        (sp.exp(k), f"e^{{{k}}}", sp.exp(-k), f"e^{{-{k}}}"),
        (sp.exp(X + Y), "e^{x+y}", sp.exp(X) * sp.exp(Y), "e^x e^y"),
        (sp.exp(X + Y), "e^{x+y}", sp.exp(X * Y), "e^{xy}"),
        (sp.Integer(k) ** (2 * N), f"{k}^{{2n}}", sp.Integer(k * k) ** N, f"{k * k}^n"),
        (sp.Integer(k) ** (2 * N), f"{k}^{{2n}}", sp.Integer(k) ** (N + 2), f"{k}^{{n+2}}"),
    ]
    return r.choice(pairs)


def complexes(r):
    a, b = r.randint(-9, 9), r.choice([-5, -3, -2, 2, 3, 4])
    z = a + b * sp.I
    w = r.choice([z, z, sp.conjugate(z), z * sp.I, sp.Integer(a + b)])
    return z, sp.latex(z), sp.expand(w), sp.latex(sp.expand(w))


def counting(r):
    n = r.randint(3, 12)
    k = r.randint(1, n - 1)
    v = sp.binomial(n, k)
    w = r.choice([v, v, sp.binomial(n, k - 1), sp.factorial(n), sp.Integer(n * k)])
    form = r.choice([f"\\binom{{{n}}}{{{k}}}", f"\\frac{{{n}!}}{{{k}!{n - k}!}}"])
    return v, form, w, str(w)


# A list is ("set", frozenset), ("tuple", tuple), ("named", {name: value}), ("interval", ...) ...


def numbers_of(r, n):
    return r.sample([sp.Rational(i, r.choice([1, 1, 1, 2])) for i in range(-12, 13)], n)


def sets(r):
    v = list(dict.fromkeys(numbers_of(r, r.randint(2, 4))))
    w = list(v)
    r.shuffle(w)
    if r.random() < 0.5:
        w = r.choice([w[:-1], w + [sp.Integer(99)], [-x - 20 for x in w], w[:-1] + [w[-1] + sp.Rational(1, 3)]])
    join = r.choice([", ", ",", ";", " or ", " and "])
    t = ", ".join(map(sp.latex, v))
    s = join.join(sp.latex(x) for x in w)
    if r.random() < 0.5:
        t, s = f"\\{{{t}\\}}", f"\\{{{', '.join(map(sp.latex, w))}\\}}"
    return ("set", frozenset(v)), t, ("set", frozenset(w)), s


def tuples(r):
    v = numbers_of(r, r.randint(2, 4))
    w = r.choice([v, v, v[::-1], v[1:] + v[:1], [-x for x in v], v[:-1] + [v[-1] + 1]])
    sep = r.choice([", ", ",", "; ", ";"])
    t = "(" + ", ".join(map(sp.latex, v)) + ")"
    s = "(" + sep.join(map(sp.latex, w)) + ")"
    if r.random() < 0.3:
        s = "\\left" + s[:-1] + "\\right)"
    return ("tuple", tuple(v)), t, ("tuple", tuple(w)), s


def named(r):
    names = r.choice([("x", "y"), ("a", "b"), ("m", "n"), ("x", "y", "z")])
    v = numbers_of(r, len(names))
    truth = dict(zip(names, v))
    got = dict(truth)
    if r.random() < 0.5:
        rolled = v[1:] + v[:1]
        got = r.choice([dict(zip(names, rolled)), dict(zip(("u", "v", "w"), v)), {**truth, names[0]: v[0] + 1}])
    items = list(got.items())
    if r.random() < 0.5:
        r.shuffle(items)
    sep = r.choice([", ", ",\\ ", " \\text{ and } ", ",\\quad "])
    show = lambda pairs, s: s.join(f"{k}={sp.latex(x)}" for k, x in pairs)
    return ("named", truth), show(truth.items(), ", "), ("named", got), show(items, sep)


def intervals(r):
    a, b = sorted(numbers_of(r, 2))
    lo, ro = r.random() < 0.5, r.random() < 0.5
    v = (a, b, lo, ro)
    w = v
    if r.random() < 0.5:
        w = r.choice([(a, b, not lo, ro), (a, b, lo, not ro), (a, b + 1, lo, ro), (-b, -a, lo, ro)])
    forms = [
        f"{'(' if w[2] else '['}{sp.latex(w[0])}, {sp.latex(w[1])}{')' if w[3] else ']'}",
        sp.latex(w[0]) + (" < " if w[2] else " \\leq ") + "x" + (" < " if w[3] else " \\leq ") + sp.latex(w[1]),
    ]
    t = f"{'(' if lo else '['}{sp.latex(a)}, {sp.latex(b)}{')' if ro else ']'}"
    s = forms[0] if r.random() < 0.6 else forms[1]
    if s is forms[0] and r.random() < 0.3:
        s = "x \\in " + s
    return ("interval", v), t, ("interval", w), s


def rays(r):
    a = numbers_of(r, 1)[0]
    op = r.choice([">", "\\geq", "<", "\\leq"])
    other = {">": "\\geq", "\\geq": ">", "<": "\\leq", "\\leq": "<"}
    turned = {">": "<", "\\geq": "\\leq", "<": ">", "\\leq": "\\geq"}
    as_interval = {
        ">": f"({sp.latex(a)}, \\infty)",
        "\\geq": f"[{sp.latex(a)}, +\\infty)",
        "<": f"(-\\infty, {sp.latex(a)})",
        "\\leq": f"(-\\infty, {sp.latex(a)}]",
    }
    t = f"x {op} {sp.latex(a)}"
    k = r.randint(2, 5)
    forms = [
        ((op, a, "x"), as_interval[op]),
        ((op, a, "x"), f"{sp.latex(a)} {turned[op]} x"),
        ((op, a, "x"), f"{k}x {op} {sp.latex(k * a)}"),
        ((other[op], a, "x"), f"x {other[op]} {sp.latex(a)}"),
        ((turned[op], a, "x"), f"x {turned[op]} {sp.latex(a)}"),
        ((op, a, "y"), f"y {op} {sp.latex(a)}"),
        ((op, a + 1, "x"), f"x {op} {sp.latex(a + 1)}"),
    ]
    w, s = r.choice(forms)
    return ("ray", (op, a, "x")), t, ("ray", w), s


def unions(r):
    a, b, c, d = sorted(numbers_of(r, 4))
    part = lambda p: f"({sp.latex(p[0])}, {sp.latex(p[1])}]"
    v = frozenset([(a, b), (c, d)])
    w = r.choice([v, v, frozenset([(a, c), (b, d)]), frozenset([(a, b)]), frozenset([(a, b), (c, d + 1)])])
    parts = list(w)
    r.shuffle(parts)
    t = " \\cup ".join(part(p) for p in sorted(v))
    as_set = lambda ps: sp.Union(*[sp.Interval(p[0], p[1], True, False) for p in ps])
    return ("sympy", as_set(v)), t, ("sympy", as_set(w)), r.choice([" \\cup ", "\\cup"]).join(part(p) for p in parts)


def signs(r):
    a, b, c = r.randint(-9, 9), r.randint(1, 5), r.choice([2, 3, 5, 7])
    v = frozenset([a + b * sp.sqrt(c), a - b * sp.sqrt(c)])
    root = f"{b if b > 1 else ''}\\sqrt{{{c}}}"
    t = r.choice([f"{a} \\pm {root}", f"{a}+{root}, {a}-{root}"])
    forms = [
        (v, f"{a} \\pm {root}"),
        (v, f"{a}-{root}, {a}+{root}"),
        (v, f"\\{{{a}+{root}, {a}-{root}\\}}"),
        (frozenset([a + b * sp.sqrt(c)]), f"{a}+{root}"),
        (frozenset([a - b * sp.sqrt(c)]), f"{a}-{root}"),
        (frozenset([-a + b * sp.sqrt(c), -a - b * sp.sqrt(c)]), f"{-a} \\pm {root}"),
    ]
    w, s = r.choice(forms)
    return ("set", v), t, ("set", w), s


def matrices(r):
    n, m = r.randint(1, 3), r.randint(1, 3)
    M = sp.Matrix(n, m, lambda i, j: r.randint(-9, 9))
    W = r.choice([M, M, M.T, -M, M + sp.ones(n, m)])
    rows = lambda Q: " \\\\ ".join(" & ".join(sp.latex(Q[i, j]) for j in range(Q.cols)) for i in range(Q.rows))
    env = r.choice(["pmatrix", "bmatrix", "array"])
    s = f"\\begin{{{env}}}{rows(W)}\\end{{{env}}}"
    if env == "array":
        s = f"\\left(\\begin{{array}}{{{'c' * W.cols}}}{rows(W)}\\end{{array}}\\right)"
    return ("matrix", sp.ImmutableMatrix(M)), f"\\begin{{pmatrix}}{rows(M)}\\end{{pmatrix}}", ("matrix", sp.ImmutableMatrix(W)), s


def equations(r):
    e = sp.expand(r.randint(1, 5) * X + r.choice([-3, -2, 1, 4]) * Y + r.randint(-9, 9))
    k = r.choice([2, 3, -1, sp.Rational(1, 2)])
    f = r.choice([e * k, e * k, e + 1, e + X, e.subs(X, -X)])
    lhs = r.choice([f, f - f.coeff(Y) * Y])
    t, s = f"{sp.latex(e)} = 0", f"{sp.latex(sp.expand(lhs))} = {sp.latex(sp.expand(lhs - f))}"
    return ("equation", sp.Poly(e, X, Y).monic()), t, ("equation", sp.Poly(sp.expand(f), X, Y).monic()), s


def assignments(r):
    v = numbers_of(r, 1)[0]
    w = r.choice([v, v, v + 1, -v])
    name, other = r.sample(["x", "y", "k", "m", "AB", "f(2)", "a_{3}"], 2)
    if r.random() < 0.25:
        return ("named", {name: v}), f"{name} = {sp.latex(v)}", ("named", {other: w}), f"{other} = {sp.latex(w)}"
    forms = [f"{name} = {sp.latex(w)}", f"{sp.latex(w)}", f"{name} = {sp.latex(w - 1)} + 1 = {sp.latex(w)}"]
    return v, r.choice([f"{name} = {sp.latex(v)}", sp.latex(v)]), w, r.choice(forms)


def units(r):
    n = r.randint(2, 500)
    m = r.choice([n, n, n + 1, n * 10])
    unit = r.choice(["\\text{ cm}", "\\text{ cm}^2", "\\mathrm{km}", "^\\circ", "\\%", "\\textnormal{ m}"])
    return sp.Integer(n), r.choice([f"{n}{unit}", str(n)]), sp.Integer(m), r.choice([f"{m}{unit}", str(m)])


def prose(r):
    """A response without a formula; its answer is one number, or several."""
    n, m, k = r.randint(2, 999), r.randint(2, 999), r.randint(2, 99)
    got = r.choice([n, n, m, n * 10, n + 1])
    frames = [
        (got, f"Half of {k} is less than {m}. So they have {got} apples."),
        (got, f"The answer is {got}. I hope it is correct."),
        (got, f"**Answer: {got}**"),
        (got, f"**{got}**"),
        (got, f"<answer>{got}</answer>"),
        (got, f"First {k} + {m} = {k + m}.\n#### {got}"),
        (got, f"She paid ${k} and then ${m}.\nA: {got}"),
        (got, f"The total is ${k} + ${got - k} = ${got}."),
        (got, f"Final Answer: the largest $n$ is {got}."),
        (got, f"The answer is: {got} apples, not {m + 1000} of them."),
        (frozenset([got, m + 1000]), f"The answer is {m + 1000} or {got}."),
        (frozenset([got, m + 1000]), f"It is {m + 1000} or {got}"),
        (sp.Rational(got, 1009), f"The answer is {got}/1009."),
        (sp.Integer(got) * X, f"The answer is {got}x"),
    ]
    w, s = r.choice(frames)
    return ("set", frozenset([sp.Integer(n)])), str(n), ("set", frozenset(map(sp.sympify, w if isinstance(w, frozenset) else [w]))), s


def bases(r):
    base = r.randint(3, 9)
    digits = "".join(str(r.randrange(base)) for _ in range(r.randint(2, 6))).lstrip("0") or "1"
    other = digits[::-1]
    b2 = r.choice([base, base, base + 1])
    d2 = r.choice([digits, digits, other])
    return ("text", (digits, base)), f"{digits}_{base}", ("text", (d2, b2)), r.choice([f"{d2}_{{{b2}}}", f"{d2}_{b2}"])


def words(r):
    a, b = r.sample(["Even", "Odd", "Monday", "Friday", "East", "West", "Dana", "Nadia", "cat", "act", "parabola", "ellipse"], 2)
    w = r.choice([a, a, b])
    return ("text", a.lower()), f"\\text{{{a}}}", ("text", w.lower()), r.choice([f"\\text{{{w}}}", w, f"\\textbf{{{w.lower()}}}"])


def unknown(r):
    """Commands that no grader knows all of: equal as they stand, and no variables that commute."""
    a, b = r.randint(2, 9), r.randint(2, 9)
    t = r.choice([
        f"\\int_{{{a}}}^{{{b}}} x^2\\,dx", f"\\vec{{a}}\\times\\vec{{b}}", f"\\sum_{{k={a}}}^{{n}} k^{b}", f"{a}\\bmod {b}",
        f"A^{{{a}}}\\setminus B", f"\\gcd({a}, n)", f"{a} \\mid n", f"\\nabla^{a} f", f"\\Re z^{b}",
    ])  # fmt: skip
    swaps = {"{a}": "{b}", "{b}": "{a}", "A": "B", "B": "A", "k": "n", "n": "k", "z": "w", "f": "g", str(a): str(b), str(b): str(a)}
    s = t
    if r.random() < 0.6:
        keys = [k for k in swaps if k in t]
        s = "".join(swaps.get(c, c) if r.random() < 0.9 else c for c in t) if not keys else swap_all(t, swaps)
    return ("text", t.replace(" ", "")), t, ("text", s.replace(" ", "")), s


def swap_all(t, swaps):
    out, i = "", 0
    while i < len(t):
        key = next((k for k in swaps if t.startswith(k, i) and not (k.isalpha() and (t[i - 1].isalpha() or t[i - 1] == "\\" or t[i + 1 : i + 2].isalpha()))), None)
        out += swaps[key] if key else t[i]
        i += len(key) if key else 1
    return out


FAMILIES = [
    integers, integers, fractions, concatenated, tiny, surds, nested, polynomials, rationals, absolutes, trigonometry,
    logarithms, complexes, counting, sets, tuples, named, intervals, rays, unions, signs, matrices, equations,
    assignments, units, prose, prose, bases, words, unknown,
]  # fmt: skip


# ---- the referee ---------------------------------------------------------------------------------------------------


def same_value(a, b):
    d = sp.simplify(a - b)
    if d == 0:
        return True
    if d.is_number:
        return abs(sp.N(d, 60)) < sp.Float("1e-50")
    for point in ({X: 1.3, Y: -0.7, N: 2.1}, {X: -1.7, Y: 0.4, N: -0.6}, {X: -0.9, Y: -1.1, N: 0.3}, {X: 2.2, Y: 1.9, N: 1.4}):
        value = sp.N(d.subs({k: sp.Rational(str(v)) for k, v in point.items()}), 40)
        if not abs(value) < sp.Float("1e-25"):
            return False
    return True


def same(a, b):
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return bool(same_value(sp.sympify(a), sp.sympify(b)))
    if not isinstance(a, tuple) or not isinstance(b, tuple) or a[0] != b[0]:
        return False
    if a[0] == "set":
        return all(any(same_value(p, q) for q in b[1]) for p in a[1]) and all(any(same_value(p, q) for q in a[1]) for p in b[1])
    return bool(a[1] == b[1])


# ---- responses -----------------------------------------------------------------------------------------------------

FRAMES = [
    "${}$",
    "$${}$$",
    "\\({}\\)",
    "\\boxed{{{}}}",
    "So the answer is $\\boxed{{{}}}$.",
    "We find $u = 17$ first. Thus the final answer is ${}$.",
    "Answer: ${}$",
    "**Answer: ${}$**",
    "<think>maybe $4711$</think>\n<answer>${}$</answer>",
    "First $1+1=2$.\n\nTherefore \\[{}\\]",
    "#### ${}$",
    "The answer is ${}$. I hope it is correct.",
]


def framed(s, decoy, r):
    frame = r.choice(FRAMES)
    text = frame.format(s)
    return f"Could it be ${decoy}$? No.\n{text}" if r.random() < 0.2 and "<answer>" not in frame else text


def pair(r):
    family = r.choice(FAMILIES)
    a, t, b, s = family(r)
    if family is prose:
        response = s
    else:
        response = framed(s, t, r) if r.random() < 0.5 else f"${s}$"
    return {"family": family.__name__, "truth": f"${t}$", "response": response, "equal": same(a, b)}


def math_verify_says(p):
    from math_verify import parse, verify

    return bool(verify(parse(p["truth"]), parse(p["response"])))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--n", type=int, default=1000)
    arguments.add_argument("--math-verify", action="store_true")
    arguments.add_argument("-o", required=True)
    c = arguments.parse_args()
    r = random.Random(c.seed)
    seen = set()
    with open(c.o, "w") as out:
        while len(seen) < c.n:
            p = pair(r)
            if (p["truth"], p["response"]) in seen:
                continue
            seen.add((p["truth"], p["response"]))
            if c.math_verify:
                p["math_verify"] = math_verify_says(p)
            out.write(json.dumps(p) + "\n")


main()
