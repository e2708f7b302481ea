"""Records the trainings that lesson 1 shows: `python benchmarks/prepare/pathology.py` (about two minutes on one thread).

Writes fastcourse/data/recordings/lr_finding.json, numbers to 4 significant digits:

- `films`: six trainings of one small network, five with a disease and one without. They differ in their seed and in the one
  thing that DISEASES names. Whoever diagnoses them is told how they were made, and not which is which.
- `sweeps`: four sweeps for a learning rate, and for each the trainings that say which rates were useful.

All are real trainings on the embedded sets; no curve is drawn by a formula.
"""
import json
import re
import sys
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW

from fastcourse import Learner, Recipe, device_facts, load, lr_find, one_cycle

FILE = Path(__file__).parents[2] / "fastcourse" / "data" / "recordings" / "lr_finding.json"
EPOCHS, RATE = 4, 0.005
FILMS = {"A": "batchnorm in train mode", "B": "too low", "C": "fp16 overflow", "D": "healthy", "E": "shuffled labels", "F": "too high"}


def patient():
    "What all six films show: 64 hidden units, twice, each time with BatchNorm"
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU(),
                         nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def float16_loss(scores, y):
    "Cross-entropy by its textbook formula, in float16: its largest number is 65,504, and e to the power of 11.09 is more"
    scores = scores.half()
    return (scores.exp().sum(1).log() - scores[torch.arange(len(y)), y]).float().mean()


DISEASES = {
    "healthy": dict(),
    "too low": dict(lr=0.00002),
    "too high": dict(lr=1.0),
    "shuffled labels": dict(shuffled=True),
    "fp16 overflow": dict(loss=float16_loss),
    "batchnorm in train mode": dict(train_mode=True),
}


def by_class(split):
    "The split in the order of its classes, as folders list their files"
    order = split.y.argsort(stable=True)
    return replace(split, x=split.x[order], y=split.y[order])


def shuffled(split, seed):
    return replace(split, y=split.y[torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))])


def examine(learner, train_mode) -> tuple[float, float]:
    "Loss and accuracy on the validation pictures, batch by batch in their order, with BatchNorm in either mode"
    batches = learner.split("valid")
    learner.model.train(train_mode)
    with torch.no_grad():
        seen = [(learner.model(x), y) for x, y in map(batches.take, torch.arange(len(batches)).split(256))]
    learner.model.train()
    scores, y = map(torch.cat, zip(*seen))
    return F.cross_entropy(scores, y).item(), (scores.argmax(1) == y).double().mean().item()


def film(diagnosis: str, seed: int) -> dict:
    "One training with everything that was measured: each step's loss, gradient norm and largest score, each epoch's validation"
    disease = dict(lr=RATE, loss=F.cross_entropy, shuffled=False, train_mode=False) | DISEASES[diagnosis]
    data, score, steps, epochs = load("fashion_mnist"), [], [], []
    data = replace(data, train=shuffled(data.train, seed) if disease["shuffled"] else data.train, valid=by_class(data.valid))
    def watched(scores, y):
        score.append(scores.detach().max().item())
        return disease["loss"](scores, y)
    learner = Learner(patient, data, loss=watched, optimizer=AdamW, seed=seed, device="cpu")
    plan = learner.plan(Recipe(lr=disease["lr"]), EPOCHS)
    for batch in learner.batches(plan):
        loss = learner.step(batch).item()
        steps.append((loss, nn.utils.get_total_norm([p.grad for p in learner.model.parameters()]).item()))
        if batch.row.first + batch.n == plan.n: epochs.append(examine(learner, disease["train_mode"]))
    (loss, gradient), (valid_loss, valid_accuracy) = zip(*steps), zip(*epochs)
    return dict(diagnosis=diagnosis, seed=seed, lr=disease["lr"], loss=loss, gradient=gradient, score=score,
                valid_loss=valid_loss, valid_accuracy=valid_accuracy)


def mlp(classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, classes))


SWEEPS = {  # name: data, samples a step, optimizer, seed of the sweep, epochs of a training, its rates as powers of ten
    "clothes, AdamW": ("fashion_mnist", 256, AdamW, 1, 3, (-3.5, -0.5)),
    "clothes, plain SGD": ("fashion_mnist", 256, SGD, 1, 3, (-2, 0.5)),
    "chest films, AdamW, batches of 16": ("chest_xray", 16, AdamW, 2, 2, (-5, -0.75)),
    "chest films, plain SGD, batches of 16": ("chest_xray", 16, SGD, 2, 2, (-3, 0)),
}


def useful(lrs, losses, most: float = 4 / 3) -> tuple[float, float]:
    "The rates around the best one whose loss stays below `most` times the best; between two trainings by interpolation"
    losses = np.nan_to_num(losses, nan=np.inf)
    best, limit = int(np.argmin(losses)), most * np.min(losses)
    def edge(direction):
        i = best
        while losses[i + direction] <= limit: i += direction
        share = (limit - losses[i]) / (losses[i + direction] - losses[i])
        return lrs[i] * (lrs[i + direction] / lrs[i]) ** share
    return edge(-1), edge(+1)


def sweep(dataset, batch_size, optimizer, seed, epochs, powers) -> dict:
    "A sweep, and one-cycle trainings over a grid of 4 rates a decade, all from another seed"
    data = load(dataset, size=28, batch_size=batch_size)
    learner = partial(Learner, lambda: mlp(len(data.classes)), data, loss=F.cross_entropy, optimizer=optimizer, device="cpu")
    found, lrs = lr_find(learner(seed=seed)), 10 ** np.arange(powers[0], powers[1] + 0.1, 0.25)
    runs = [learner(seed=seed + 100).fit(Recipe(lr=one_cycle(float(lr))), epochs, progress=False, stop_at_nan=False) for lr in lrs]
    losses = [run.epochs[-1]["valid_loss"] for run in runs]
    return dict(data=dataset, seed=seed, lrs=found.lrs, losses=found.losses, useful=useful(lrs, losses),
                trained=dict(seed=seed + 100, epochs=epochs, lrs=lrs, valid_loss=losses))


def rounded(value):
    "Numbers to 4 significant digits; what is not finite, as a word, since JSON has no other"
    if isinstance(value, dict): return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)): return [rounded(v) for v in value]
    if not isinstance(value, float): return value
    return float(f"{value:.4g}") if np.isfinite(value) else str(float(value))


def main() -> int:
    torch.set_num_threads(1)
    films = {letter: film(diagnosis, seed) for seed, (letter, diagnosis) in enumerate(FILMS.items(), 1)}
    head = dict(script="benchmarks/prepare/pathology.py", time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                machine=asdict(device_facts("cpu")), epochs=EPOCHS)
    content = rounded(head | dict(films=films, sweeps={name: sweep(*task) for name, task in SWEEPS.items()}))
    FILE.parent.mkdir(exist_ok=True)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), json.dumps(content, indent=1, allow_nan=False))
    FILE.write_text(text + "\n", encoding="utf-8")
    return print(f"{FILE.name}: {FILE.stat().st_size:,} bytes") or 0


if __name__ == "__main__": sys.exit(main())
