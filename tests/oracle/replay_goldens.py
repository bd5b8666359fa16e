"""RePO's advantages and loss in float64, written out of the paper: writes tests/golden/replay.txt.

    pip install numpy
    python tests/oracle/replay_goldens.py > tests/golden/replay.txt

Plain loops and a derivative by hand, over the batches of batches.py. Of a group's responses all but the first stand for old
ones, which were sampled by the policy of `sampled`; the first is new, of the policy `old`.
tests/unit/graphs/loader/test_catalogue.c draws the same batches and compares.
"""
import math
import statistics

from batches import BATCHES, Batch, number, put

LOW, HIGH = 0.2, 0.2


def is_old(b, row):
    return row > 0 and b.groups[row] == b.groups[row - 1]


def advantages(b):
    """In deviations from the mean of those of the same prompt and the same age; one alone is its own mean."""
    out = []
    for row, group in enumerate(b.groups):
        same = [b.score[i] for i, g in enumerate(b.groups) if g == group and is_old(b, i) == is_old(b, row)]
        spread = statistics.stdev(same) if len(same) > 1 else 0.0
        out.append((b.score[row] - sum(same) / len(same)) / (spread + 1e-4))
    return out


def tokens(b):
    """Of each token: its row, its place among all tokens, whether it counts."""
    at = 0
    for row, mask in enumerate(b.mask):
        for m in mask:
            yield row, at, m
            at += 1


def loss(b):
    """(3) and (5), as losses: mean over rows of the mean over tokens of max(-A r, -A clip(r)), of new rows and of old ones."""
    rows = {age: [i for i in range(b.rows()) if is_old(b, i) == age] for age in (False, True)}
    value, slope = 0.0, []
    for row, at, m in tokens(b):
        age = is_old(b, row)
        if not m:
            slope.append(None)
            continue
        before = b.columns["sampled" if age else "old"][at]
        ratio, a = math.exp(b.columns["logprob"][at] - before), b.advantage[row]
        clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
        share = 1 / (len(rows[age]) * sum(b.mask[row]))
        value += share * max(-a * ratio, -a * clipped)
        moves = -a * ratio >= -a * clipped  # else the clipped one counts, which does not move
        slope.append(-share * a * ratio if moves else 0.0)
    return value, [s for s in slope if s is not None]


def main():
    print("batches", BATCHES)
    for i in range(BATCHES):
        b = Batch(i)
        print("batch", i, b.rows(), sum(b.lengths), number(sum(b.columns["returns"])))
        of_row = advantages(b)
        put("repo", [of_row[row] for row, _, m in tokens(b) if m])
        value, slope = loss(b)
        print("loss.repo", number(value), " ".join(number(s) for s in slope))


main()
