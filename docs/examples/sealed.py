#!/usr/bin/env python3
"""Checkpoints of a Python program that goes on: fyjob seals a directory.

    job:
      steps: [{name: count, run: [python3, /work/source/sealed.py, "1000", "250"]}]
      outputs: [{path: result}]
      resume: {mode: application, format: {name: count, version: 1}, checkpoint: {interval: 10m}}
"""
import os
import subprocess
import sys

total, every = int(sys.argv[1]), int(sys.argv[2])
UNDER = "FORGEYARD_CKPT_PROTOCOL" in os.environ


def fyjob(*args):
    return subprocess.run(("fyjob",) + args, stdout=subprocess.PIPE, text=True)


def save():
    begun = fyjob("ckpt", "begin")
    if begun.returncode != 0:
        return  # no checkpoint now; the work goes on
    where = begun.stdout.strip()
    with open(os.path.join(where, "sum"), "w") as f:
        f.write("%d %d\n" % (i, total_so_far))
    if fyjob("ckpt", "commit", where, "--progress", "%d/%d" % (i, total)).returncode == 5:
        sys.exit(1)  # another epoch does this work: stop now


i = total_so_far = 0
restored = os.environ.get("FORGEYARD_RESTORE_DIR")
if restored:
    with open(os.path.join(restored, "sum")) as f:
        i, total_so_far = map(int, f.read().split())
    fyjob("restore", "ok")

while i < total:
    i += 1
    total_so_far = (total_so_far * 31 + i) % 1000003  # the work
    if UNDER and i % every == 0:
        save()
        if fyjob("ckpt", "should-exit").returncode == 0:
            sys.exit(int(os.environ["FORGEYARD_CKPT_EXIT_CODE"]))
with open("result", "w") as f:
    f.write("%d\n" % total_so_far)
