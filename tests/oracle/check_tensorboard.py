"""Does TensorBoard read the events file of a run, and find in it what metrics.jsonl says?

usage: check_tensorboard.py RUN

Every scalar of every step must be there once, equal in float32; null is NaN or absent. Needs tensorboard.
"""

import glob
import json
import math
import struct
import sys

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

NOT_SCALARS = {"step", "planned_peak_bytes", "measured_peak_bytes"}


def float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def read_events(run):
    found = {}
    for path in sorted(glob.glob(f"{run}/events.out.tfevents.*")):
        for raw in RawEventFileLoader(path).Load():  # checks both CRCs of each record
            event = Event.FromString(raw)
            for value in event.summary.value:
                found[event.step, value.tag] = value.simple_value
    return found


def main(run):
    found, wanted = read_events(run), 0
    for line in open(f"{run}/metrics.jsonl", encoding="utf-8"):
        metrics = json.loads(line)
        for tag, value in metrics.items():
            if tag in NOT_SCALARS:
                continue
            got = found.pop((metrics["step"], tag), math.nan)
            same = math.isnan(got) if value is None else got == float32(value)
            assert same, f"step {metrics['step']}, {tag}: {got}, not {value}"
            wanted += 1
    assert wanted and not found, f"not in metrics.jsonl: {sorted(found)[:5]}"
    print(f"{wanted} scalars agree")


main(sys.argv[1])
