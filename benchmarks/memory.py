"""Whether training keeps memory: `python benchmarks/memory.py` (two minutes) takes 100,000 steps and looks at the process after each tenth of them.

The plan has 100,000 rows, so the table itself is in memory from the start; what must not grow is anything a step leaves behind. The learner clips,
averages, augments and is saved now and then."""
import os
import sys
import tempfile
import tracemalloc
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from fastcourse import Learner, Recipe, from_arrays, one_cycle
from result import save

STEPS, PARTS = 100_000, 10


def resident_mb() -> float:
    "What the process holds in memory (Linux)"
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    torch.set_num_threads(1)
    x, y = torch.randn(640, 1, 8, 8), torch.arange(640) % 2
    data = from_arrays(x, y, batch_size=16, augment=("flip", "shift"), valid=0, test=0)
    learner = Learner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), data, loss=F.cross_entropy, optimizer=torch.optim.AdamW, seed=1, device="cpu", clip=1.0, ema=0.99)
    plan = learner.plan(Recipe(lr=one_cycle(0.01), augment=0.5), STEPS * 16 / 640)
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        for batch in learner.batches(plan):
            learner.step(batch)
            if batch.step == 1000: tracemalloc.start()
            if (batch.step + 1) % (STEPS // PARTS): continue
            learner.save(f"{folder}/run.ckpt")
            seen.append(dict(steps=batch.step + 1, resident_mb=round(resident_mb(), 1), python_mb=round(tracemalloc.get_traced_memory()[0] / 1e6, 3)))
            print(seen[-1], flush=True)
    growth = seen[-1]["python_mb"] - seen[0]["python_mb"]
    save("memory", steps=len(plan), seen=seen, python_growth_mb=round(growth, 3), resident_growth_mb=round(seen[-1]["resident_mb"] - seen[0]["resident_mb"], 1))
    return int(growth > 1)


if __name__ == "__main__": sys.exit(main())
