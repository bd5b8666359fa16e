#!/usr/bin/env python3
"""Checks the JSON Schema of graph files with the jsonschema package: it takes every file as it stands, parts and files
that use others too, and every graph that loads; it refuses the ones whose keys, kinds or choices are wrong.

    graphrun schema > schema.json
    tests/oracle/graph_schema.py schema.json graphs/*.yaml graphs/*/*.yaml
"""
import glob
import json
import sys

import jsonschema
import yaml

# Errors that a schema can see; the others are about names, levels and order.
BROKEN = ["empty_value", "node_not_a_map", "op_missing", "out_of_range",
          "run_keys", "state_keys", "train_keys", "unknown_key", "unknown_key_far", "unknown_op", "unknown_op_far",
          "unknown_top_key", "wrong_choice", "wrong_head", "wrong_kind"]
# Those of them that are wrong in the file itself, whatever it uses.
BROKEN_ALONE = ["node_not_a_map", "out_of_range", "run_keys", "state_keys", "train_keys", "unknown_key_far", "unknown_op",
                "unknown_op_far", "unknown_top_key", "wrong_choice", "wrong_head", "wrong_kind"]
FOLDER = "tests/golden/graphs/"


def read(path):
    with open(path) as f:
        return yaml.safe_load(f)


def merged(path):
    own = read(path)
    base = {}
    use = own.pop("use", [])
    for used in [use] if isinstance(use, str) else use:
        base = merge(base, merged(path[:path.rindex("/") + 1] + used))
    return merge(base, own)


def merge(base, over):
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
        elif value is None and key in base:
            del base[key]
        else:
            base[key] = value
    return base


def main():
    with open(sys.argv[1]) as f:
        schema = json.load(f)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    good = sys.argv[2:] + glob.glob(FOLDER + "proof_*.yaml") + [FOLDER + "ok.yaml"]
    failed = 0
    for path in good:
        for what, graph in (("", read(path)), (", with what it uses", merged(path))):
            for e in validator.iter_errors(graph):
                print(f"{path}{what}: refused: {'/'.join(map(str, e.absolute_path))}: {e.message[:200]}")
                failed += 1
    for names, how in ((BROKEN, merged), (BROKEN_ALONE, read)):
        for name in names:
            if validator.is_valid(how(FOLDER + name + ".yaml")):
                print(f"{name}: accepted by {how.__name__}")
                failed += 1
    print(f"{len(good)} graphs, {len(BROKEN)} broken ones, {failed} wrong")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
