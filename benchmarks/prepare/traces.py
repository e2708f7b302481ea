"""Records what lesson 2 shows and does not train again: `python benchmarks/prepare/traces.py` (seconds).

Writes fastcourse/data/recordings/one_cycle.json, numbers to 4 significant digits:

- `traces`: six trainings in a plain PyTorch loop, with PyTorch's own schedulers: one as meant, five misused as people do. All
  share their seed, weights and order; they differ in the schedule's rate alone. No curve is drawn by a formula.
- `comparison`, `momentum` and `warmup`: what the lesson needs of benchmarks/results/schedules.json and warmup.json.
"""
import json
import re
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR

from fastcourse import Batches, device_facts, load
from pathology import rounded

ROOT = Path(__file__).parents[2]
FILE = ROOT / "fastcourse" / "data" / "recordings" / "one_cycle.json"
SEED, EPOCHS, BATCH, PEAK = 1, 4, 250, 0.01
STEPS = EPOCHS * 10_000 // BATCH
LETTERS = {"A": "planned for too many steps", "B": "stepped twice", "C": "restarted", "D": "healthy", "E": "planned for too few steps", "F": "stepped once an epoch"}


def one_cycle(optimizer, steps=STEPS): return OneCycleLR(optimizer, max_lr=PEAK, total_steps=steps, cycle_momentum=False)


def warmup_and_cosine(optimizer, warmup, steps):
    "As in many scripts for language models"
    return SequentialLR(optimizer, [LinearLR(optimizer, 1 / 25, 1.0, warmup), CosineAnnealingLR(optimizer, steps - warmup)], [warmup])


class Loop:
    "A training loop as it is written by hand; each way of stepping the schedule is a method"
    def __init__(self, diagnosis):
        torch.manual_seed(SEED)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.optimizer = AdamW(self.model.parameters(), lr=PEAK)
        self.diagnosis, self.schedule = diagnosis, SCHEDULES.get(diagnosis, one_cycle)(self.optimizer)

    def advance(self, done: int):
        "What this loop does with its schedule after `done` steps"
        if self.diagnosis == "stepped once an epoch" and done % (STEPS // EPOCHS): return
        if self.diagnosis == "restarted" and done == STEPS // 2: return self.interrupted()
        for _ in range(2 if self.diagnosis == "stepped twice" else 1): self.step()

    def step(self):
        "As Accelerate's wrapper asks before each step, since one step too many is an error of OneCycleLR"
        if not isinstance(self.schedule, OneCycleLR) or self.schedule._step_count <= self.schedule.total_steps: self.schedule.step()

    def interrupted(self):
        "Weights and optimizer come back from a file; the schedule, which was not in it, is built anew"
        saved = self.optimizer.state_dict()
        self.optimizer = AdamW(self.model.parameters(), lr=PEAK)
        self.optimizer.load_state_dict(saved)
        self.schedule = one_cycle(self.optimizer)

    def run(self, train, valid) -> dict:
        lrs, losses, order = [], [], torch.Generator().manual_seed(SEED)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(train), generator=order).split(BATCH):
                x, y = train.take(index)
                loss = F.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                lrs.append(float(self.optimizer.param_groups[0]["lr"]))
                losses.append(loss.item())
                self.advance(len(lrs))
        x, y = valid.take(torch.arange(len(valid)))
        with torch.no_grad(): scores = self.model(x)
        return dict(diagnosis=self.diagnosis, lr=lrs, loss=losses, valid_loss=F.cross_entropy(scores, y).item(),
                    valid_accuracy=(scores.argmax(1) == y).double().mean().item())


SCHEDULES = {
    "planned for too many steps": lambda optimizer: one_cycle(optimizer, 4 * STEPS),                 # four micro-batches a step, all counted
    "planned for too few steps": lambda optimizer: warmup_and_cosine(optimizer, STEPS // 4, 3 * STEPS // 4),   # an epoch was added later
}


def result(name) -> dict: return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def shown(found) -> dict:
    "Of one schedule: its rate, the means and standard deviations, and the accuracy and loss of each seed; the rates tried, each with its validation loss"
    return dict(rate=found["rate"], **{name: pair for name, pair in found["mean_and_sd"].items()}, accuracies=[run["test_accuracy"] for run in found["runs"]],
                losses=[run["test_loss"] for run in found["runs"]], tried=[float(rate) for rate in found["chosen_by"]], tried_valid_loss=list(found["chosen_by"].values()))


def measured() -> dict:
    "What the lesson needs of the two result files"
    schedules, warmup = result("schedules"), result("warmup")
    momentum = schedules["momentum"]
    return dict(comparison={name: shown(found) for name, found in schedules["schedules"].items()}, against_one_cycle=schedules["against_one_cycle"],
                momentum={name: {how: shown(found) for how, found in momentum[name].items()} for name in ("sgd", "adamw")},
                momentum_against_constant={name: momentum[f"{name}_against_constant"] for name in ("sgd", "adamw")},
                warmup={name: {rate: {how: flat(runs) for how, runs in ways.items()} for rate, ways in rates.items()} for name, rates in warmup["settings"].items()})


def flat(runs) -> dict:
    "The pairs of curvatures as two lists"
    before, after = zip(*runs["curvature"])
    return {name: values for name, values in runs.items() if name != "curvature"} | dict(curvature_before=before, curvature_after=after)


def traces(letters=LETTERS) -> dict:
    data = load("fashion_mnist", size=14)
    train, valid = (Batches(split, mean=data.mean, std=data.std, device="cpu") for split in (data.train, data.valid))
    return {letter: Loop(diagnosis).run(train, valid) for letter, diagnosis in LETTERS.items() if letter in letters}


def main() -> int:
    torch.set_num_threads(1)
    head = dict(script="benchmarks/prepare/traces.py", time=datetime.now(timezone.utc).isoformat(timespec="seconds"), machine=asdict(device_facts("cpu")))
    content = rounded(head | dict(seed=SEED, epochs=EPOCHS, peak=PEAK, traces=traces()) | measured())
    text = re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), json.dumps(content, indent=1, allow_nan=False))
    FILE.write_text(text + "\n", encoding="utf-8")
    return print(f"{FILE.name}: {FILE.stat().st_size:,} bytes") or 0


if __name__ == "__main__": sys.exit(main())
