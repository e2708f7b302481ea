"""What a step of `learner.step(batch)` costs beside the loop written by hand: `python benchmarks/step.py` (about a minute).

Both train the same tiny MLP (64-64-10, AdamW) on the same batches of 64, where nothing hides the loop's own cost: the hand-written
loop indexes the tensors in memory, normalises them, runs forward and backward, updates. Rounds of both alternate, in turn first;
the result is the median of the rounds' ratios. Limit: 1.10. A round in which the machine was busy moves one side only, so the
spread is written too. The finder's ratio is that of its whole sweep to the same number of steps taken by `learner.step`.
"""
import statistics
import sys
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn

from fastcourse.train.curves import exponential
from fastcourse.train.recipe import Recipe
from fastcourse.train.data import from_arrays
from fastcourse.train.learner import Learner
from fastcourse.train.lr_find import lr_find, sweep_plan
from result import save

N, BATCH, ROUNDS, LIMIT = 6400, 64, 41, 1.10


def mlp(): return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def make_learner():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(N, 64, generator=g), torch.arange(N) % 10
    return Learner(mlp, from_arrays(x, y, valid=(x[:10], y[:10]), test=(x[:10], y[:10]), batch_size=BATCH), loss=F.cross_entropy, optimizer=torch.optim.AdamW, seed=1, device="cpu")


def by_learner(learner):
    for batch in learner.batches(learner.plan(Recipe(lr=1e-3), 1)): learner.step(batch)


def by_hand(model, optimizer, x, y, mean, factor):
    order = torch.randperm(N)
    for at in order.split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model((x[at] - mean) * factor), y[at]).backward()
        optimizer.step()


def seconds(f) -> float:
    start = perf_counter()
    f()
    return perf_counter() - start


def ratios(a, b, rounds):
    "The ratio of a's seconds to b's in each round; who goes first changes"
    pairs = []
    for i in range(rounds):
        first, second = (a, b) if i % 2 else (b, a)
        t = {first: seconds(first), second: seconds(second)}
        pairs.append((t[a], t[b]))
    return pairs


def summary(pairs, steps):
    r = sorted(a / b for a, b in pairs)
    return dict(ratio=round(statistics.median(r), 3), quartiles=[round(r[len(r) // 4], 3), round(r[-len(r) // 4], 3)], n=len(r),
                ours_us_per_step=round(min(a for a, _ in pairs) / steps * 1e6, 1), other_us_per_step=round(min(b for _, b in pairs) / steps * 1e6, 1))


def main() -> int:
    torch.set_num_threads(1)
    learner, model = make_learner(), mlp()
    data, optimizer = learner.split("train"), torch.optim.AdamW(model.parameters(), lr=1e-3)
    hand = lambda: by_hand(model, optimizer, data.x, data.y, data.mean, data.factor)
    ours = lambda: by_learner(learner)
    ours(), hand()
    step = summary(ratios(ours, hand, ROUNDS), N // BATCH)
    plan = sweep_plan(learner, exponential(1e-6, 10), 113)
    def raw():
        with learner.rehearsal():
            for _, batch in zip(range(len(found.lrs)), learner.batches(plan)): learner.step(batch).item()
    found = lr_find(learner)
    finder = summary(ratios(lambda: lr_find(learner), raw, ROUNDS), len(found.lrs))
    print(f"step {step}\nfinder {finder}")
    save("step", step=step, finder=finder, limit=dict(step=LIMIT, finder=1.15), threads=1)
    return int(step["ratio"] > LIMIT or finder["ratio"] > 1.15)


if __name__ == "__main__": sys.exit(main())
