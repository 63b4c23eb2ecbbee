#!/usr/bin/env python3
"""Shortest job first, as a policy for `drover sim run -scheduler "pipe:python3 sjf.py"`.

Reads one JSON object per line and answers each with one line. It starts the stages with the least
expected work first, on the first node with free capacity.
"""

import json
import sys

RESOURCES = ("cpu", "memory", "io")


def fits(free, demand):
    """Returns how many tasks with a demand fit into what is free."""
    return min(free[r] // demand[r] for r in RESOURCES if demand[r] > 0)


def decide(state):
    place = []
    for stage in sorted(state["waiting"], key=lambda s: (s["estimate_s"] * s["tasks"], s["job"], s["stage"])):
        left = stage["tasks"]
        for node in state["nodes"]:
            n = min(left, fits(node["free"], stage["demand"]))
            if n <= 0:
                continue
            place.append({"job": stage["job"], "stage": stage["stage"], "node": node["id"], "tasks": n})
            for r in RESOURCES:
                node["free"][r] -= n * stage["demand"][r]
            left -= n
            if left == 0:
                break
    return {"place": place}


for line in sys.stdin:
    print(json.dumps(decide(json.loads(line))), flush=True)
