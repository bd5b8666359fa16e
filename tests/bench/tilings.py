#!/usr/bin/env python3
"""Inputs of `graphrun pack` whose lowest packing is known, for they are a full rectangle cut up; and a check of what is packed.

    tests/bench/tilings.py make KIND N GRID SEED FILE     N buffers of GRID steps and 256 * GRID bytes
    tests/bench/tilings.py mirror FILE TO                 time reversed
    tests/bench/tilings.py shuffle FILE SEED TO           lines in another order
    tests/bench/tilings.py check FILE PACKED              no two buffers share a byte at a time: prints height, bound and how far above
    tests/bench/tilings.py table GRAPHRUN [KIND...]       makes, packs, checks and prints the table of docs/PERFORMANCE.md

Kinds: `halves` cuts a rectangle in two about its middle, in time or in bytes, and so on; `cuts` cuts it anywhere, the larger
rectangles first; `wheels` also in five around one in the middle, which no straight cut parts; `grown` has walls that grow
from random points until they meet another, so that most of it is one tangle; `gaps` is `wheels` with one buffer in thirty left out. Of a
small grid many buffers begin at the same step and have the same size; of a large one, few.
"""
import bisect
import csv
import heapq
import os
import random
import resource
import subprocess
import sys
import tempfile

UNIT = 256


def halves(rng, n, t0, t1, h0, h1, out):
    stack = [(n, t0, t1, h0, h1)]
    while stack:
        n, t0, t1, h0, h1 = stack.pop()
        if n == 1 or (t1 - t0 == 1 and h1 - h0 == 1):
            out.append((t0, t1, h0, h1))
            continue
        in_time = h1 - h0 == 1 or (t1 - t0 > 1 and rng.random() < 0.5)
        length = t1 - t0 if in_time else h1 - h0
        at = length // 2 - length // 4 + rng.randrange(2 * (length // 4) + 1)
        at = min(max(at, 1), length - 1)
        below = min(max(n * at // length, 1), n - 1)
        if in_time:
            stack += [(below, t0, t0 + at, h0, h1), (n - below, t0 + at, t1, h0, h1)]
        else:
            stack += [(below, t0, t1, h0, h0 + at), (n - below, t0, t1, h0 + at, h1)]


def largest_first(rng, n, grid, wheel, out):
    """Cut the rectangle of the largest area, at any place that leaves no sliver, until there are n."""
    heap, k = [(-grid * grid, 0, (0, grid, 0, grid))], 1
    while heap and len(heap) + len(out) < n:
        _, _, (t0, t1, h0, h1) = heapq.heappop(heap)
        w, h = t1 - t0, h1 - h0
        parts = []
        if w >= 8 and h >= 8 and rng.random() < wheel:
            ta, tb = t0 + rng.randrange(w // 5, w // 2), t0 + rng.randrange(w // 2 + 1, w - w // 5)
            ha, hb = h0 + rng.randrange(h // 5, h // 2), h0 + rng.randrange(h // 2 + 1, h - h // 5)
            parts = [(t0, tb, h0, ha), (tb, t1, h0, hb), (ta, t1, hb, h1), (t0, ta, ha, h1), (ta, tb, ha, hb)]
            if rng.random() < 0.5:
                parts = [(a, b, h1 - d + h0, h1 - c + h0) for a, b, c, d in parts]
        elif w >= 2 and (h < 2 or rng.random() < 0.5):
            at = t0 + rng.randrange(max(w // 6, 1), max(w - w // 6, 2))
            parts = [(t0, at, h0, h1), (at, t1, h0, h1)]
        elif h >= 2:
            at = h0 + rng.randrange(max(h // 6, 1), max(h - h // 6, 2))
            parts = [(t0, t1, h0, at), (t0, t1, at, h1)]
        else:
            out.append((t0, t1, h0, h1))
        for p in parts:
            heapq.heappush(heap, (-(p[1] - p[0]) * (p[3] - p[2]), k, p))
            k += 1
    out += [r for _, _, r in heap]


def grown(rng, n, grid, out):
    """Walls grow from points, both ways at one speed; what comes to a wall that stands there ends at it. n - 1 walls part a
    rectangle in n."""
    xs, ys = rng.sample(range(1, grid), n - 1), rng.sample(range(1, grid), n - 1)
    walls = [(x, y, rng.random() < 0.5) for x, y in zip(xs, ys)]  # in time: a horizontal wall
    flat = sorted((y, i) for i, (x, y, f) in enumerate(walls) if f)
    tall = sorted((x, i) for i, (x, y, f) in enumerate(walls) if not f)
    ends = [[None, None] for _ in walls]
    reach = max(int(8 * grid / n ** 0.5), 1)
    while True:
        meets = []
        for x, v in tall:
            y = walls[v][1]
            for yy, f in flat[bisect.bisect_left(flat, (y - reach, 0)):bisect.bisect_right(flat, (y + reach, n))]:
                dx = abs(walls[f][0] - x)
                if dx <= reach:
                    meets.append((max(dx, abs(yy - y)), f, v, dx, abs(yy - y)))
        meets.sort()
        ends = [[None, None] for _ in walls]
        for _, f, v, dx, dy in meets:
            if dx == dy:
                dy -= (f + v) % 2 * 2 - 1  # one is there first
            late, early = (f, v) if dx > dy else (v, f)
            way = lambda w: int((walls[v][0] > walls[f][0]) if w == f else (walls[f][1] > walls[v][1]))
            if ends[late][way(late)] is not None:
                continue
            e = ends[early][way(early)]
            there = walls[late][1] if early == v else walls[late][0]
            if e is not None and (there > e if way(early) else there < e):
                continue
            ends[late][way(late)] = walls[early][0] if late == f else walls[early][1]
        if reach >= grid:
            break
        reach *= 4
    lines = []
    for (x, y, f), (lo, hi) in zip(walls, ends):
        lines.append((f, y if f else x, 0 if lo is None else lo, grid if hi is None else hi))
    rooms(lines, grid, out)


def rooms(lines, grid, out):
    """Rectangles between walls: swept over time, floors and ceilings of what is open."""
    flat = [(c, lo, hi) for f, c, lo, hi in lines if f]
    tall = sorted((c, lo, hi) for f, c, lo, hi in lines if not f)
    begins = {}
    for c, lo, hi in flat:
        begins.setdefault(lo, []).append((c, hi))
    heights = sorted([(0, grid), (grid, grid)] + [(c, hi) for c, hi in begins.get(0, [])])
    since = {(a[0], b[0]): 0 for a, b in zip(heights, heights[1:])}
    for x, lo, hi in tall:
        inside = [h for h in heights if lo <= h[0] <= hi]
        for a, b in zip(inside, inside[1:]):
            out.append((since.pop((a[0], b[0])), x, a[0], b[0]))
        left = [h for h in heights if not lo < h[0] < hi or h[1] > x]
        heights = sorted(left + [(c, e) for c, e in begins.get(x, []) if lo <= c <= hi])
        inside = [h for h in heights if lo <= h[0] <= hi]
        for a, b in zip(inside, inside[1:]):
            since[(a[0], b[0])] = x
    for a, b in zip(heights, heights[1:]):
        out.append((since[(a[0], b[0])], grid, a[0], b[0]))


def make(kind, n, grid, seed):
    rng, out = random.Random(f"{kind} {n} {grid} {seed}"), []
    if kind == "halves":
        halves(rng, n, 0, grid, 0, grid, out)
    elif kind == "cuts":
        largest_first(rng, n, grid, 0, out)
    elif kind in ("wheels", "gaps"):
        largest_first(rng, n, grid, 0.3, out)
    elif kind == "grown":
        grown(rng, n, grid, out)
    else:
        sys.exit(f"no such kind: {kind}")
    assert sum((b - a) * (d - c) for a, b, c, d in out) == grid * grid
    rng.shuffle(out)
    if kind == "gaps":
        out = out[:len(out) - len(out) // 30]
    return [(i, a, b, UNIT * (d - c)) for i, (a, b, c, d) in enumerate(out)]


def write(path, rows):
    with open(path, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["id", "lower", "upper", "size"])
        w.writerows(rows)


def read(path):
    with open(path) as f:
        return [(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])) + ((int(r["offset"]),) if "offset" in r else ())
                for r in csv.DictReader(f)]


def bound_of(rows):
    change = {}
    for _, a, b, size, *_ in rows:
        change[a] = change.get(a, 0) + size
        change[b] = change.get(b, 0) - size
    live = most = 0
    for t in sorted(change):
        live += change[t]
        most = max(most, live)
    return most


def check(path, packed):
    """The height, after a sweep over time in which no buffer may meet its neighbours."""
    given, rows = read(path), read(packed)
    assert sorted(r[:4] for r in given) == sorted(r[:4] for r in rows), "other buffers than were given"
    events = sorted([(a, 1, o, o + size) for _, a, b, size, o in rows] + [(b, 0, o, o + size) for _, a, b, size, o in rows])
    live = []
    for _, starts, at, top in events:
        i = bisect.bisect_left(live, (at, top))
        if not starts:
            assert live[i] == (at, top)
            del live[i]
            continue
        assert at >= 0 and (i == 0 or live[i - 1][1] <= at) and (i == len(live) or live[i][0] >= top), f"two buffers share byte {at}"
        live.insert(i, (at, top))
    return max(o + size for _, _, _, size, o in rows)


def pack(graphrun, path, out):
    """Height as checked, and user seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([graphrun, "pack", path, "-o", out], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"status {done.returncode}: {done.stderr}")
    return check(path, out), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def table(graphrun, kinds):
    print("| kind | buffers | grid | seeds | at the bound | worst above it | mirrored and shuffled alike | user seconds, mean | most |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path, other, out = (os.path.join(folder, f) for f in ("in.csv", "other.csv", "out.csv"))
        for kind in kinds or ("halves", "cuts", "wheels", "gaps", "grown"):
            for n, seeds in ((1000, 4), (3000, 3), (10000, 2)):
                for grid in (1000, 1000000):
                    if kind == "grown" and grid <= n:
                        continue  # each wall has a step of its own
                    above, times, alike = [], [], True
                    for seed in range(seeds):
                        rows = make(kind, n, grid, seed)
                        write(path, rows)
                        height, seconds = pack(graphrun, path, out)
                        above.append(height / bound_of(rows) - 1)
                        times.append(seconds)
                        if seed == 0:
                            top = max(b for _, _, b, _ in rows)
                            write(other, random.Random(1).sample([(i, top - b, top - a, s) for i, a, b, s in rows], len(rows)))
                            alike = pack(graphrun, other, out)[0] == height
                    print(f"| {kind} | {n:,} | {grid:,} | {seeds} | {sum(a == 0 for a in above)} | {100 * max(above):.2f} % | "
                          f"{'yes' if alike else 'no'} | {sum(times) / seeds:.1f} | {max(times):.1f} |", flush=True)


def main():
    a = sys.argv[1:]
    if len(a) == 6 and a[0] == "make":
        write(a[5], make(a[1], int(a[2]), int(a[3]), int(a[4])))
    elif len(a) == 3 and a[0] == "mirror":
        rows = read(a[1])
        top = max(r[2] for r in rows)
        write(a[2], [(i, top - b, top - lower, s) for i, lower, b, s in rows])
    elif len(a) == 4 and a[0] == "shuffle":
        rows = read(a[1])
        random.Random(a[2]).shuffle(rows)
        write(a[3], rows)
    elif len(a) == 3 and a[0] == "check":
        height, bound = check(a[1], a[2]), bound_of(read(a[1]))
        print(f"{height} {bound} {100 * (height / bound - 1):.2f} %")
    elif len(a) >= 2 and a[0] == "table":
        table(a[1], a[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
