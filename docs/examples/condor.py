#!/usr/bin/env python3
"""A self-checkpointing program for HTCondor, as one writes it there.

    executable            = condor.py
    arguments             = 1000 300
    checkpoint_exit_code  = 85
    transfer_checkpoint_files = sum.checkpoint

It knows nothing of Forgeyard. There it runs as it is:

    job:
      steps: [{name: sum, run: [python3, /work/source/condor.py, "1000", "300"]}]
      outputs: [{path: result}]
      resume: {mode: application, compat_profile: htcondor, checkpoint: {exit_code: 85, files: [sum.checkpoint]}}
"""
import os
import sys

total, part = int(sys.argv[1]), int(sys.argv[2])
i = total_so_far = 0
if os.path.exists("sum.checkpoint"):
    with open("sum.checkpoint") as f:
        i, total_so_far = map(int, f.read().split())

stop = min(total, i + part)
while i < stop:
    i += 1
    total_so_far = (total_so_far * 31 + i) % 1000003  # the work

if i < total:
    with open("sum.checkpoint.new", "w") as f:
        f.write("%d %d\n" % (i, total_so_far))
    os.rename("sum.checkpoint.new", "sum.checkpoint")
    sys.exit(85)
with open("result", "w") as f:
    f.write("%d\n" % total_so_far)
