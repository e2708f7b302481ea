"""How good the finder's suggestions are, on pairs of data and model that its rule was not chosen on.

`python benchmarks/finder.py record` (about an hour on two cores; it goes on where it was stopped) sweeps each task with ten seeds,
trains it in short one-cycle runs at nine peaks, half a decade apart, and at four more around the best of them, with two seeds
each and five within a decade of the best, and writes results/finder_sweeps.json. `python benchmarks/finder.py` (a second) judges the rules on that record and writes
results/finder.json.

A rule's suggestion is worth the validation loss at the end of a run at that rate, over the best. It is read in two ways. Raw: from the
thirteen means by straight lines in log rate and log loss, over the lowest of them. But a mean of five runs has a standard error of 3
to 11 % here (in the result), as much as the 10 % that is asked for, and the lowest of thirteen is low partly by luck. So the first
reading is a cubic through all runs within a decade of the best, in the same logarithms; beyond that decade the straight lines. fastai's four rules are re-derived from their descriptions and read the same
sweeps: smoothed as fastai does (an exponential average of 0.98, corrected for its start), without the first tenth and the last
five points. So this compares the rules, not the two programs. "3 sweeps" takes the mean of three seeds' sweeps, which differ in their first
weights too. Shares count the suggestions that were given; where the loss never descends, ours gives none.
"""
import functools
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch.optim import SGD, AdamW

from fastcourse import FastcourseError, Learner, Recipe, beans, chest_xray, convnet, fashion_mnist, lr_find, one_cycle, resnet_small, spoken_digits, suggest
from fastcourse.train.plot import smooth
from result import FOLDER, save

RECORD, SEEDS, LRS = FOLDER / "finder_sweeps.json", range(10), np.geomspace(1e-6, 10, 113)


def torchvision_resnet():
    "torchvision's ResNet with one block a stage instead of two"
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=3)


PAIRS = {   # data, model, epochs of a run
    "chest_xray 32 px, convnet": (lambda: chest_xray(size=32, batch_size=64), lambda: convnet(2), 1),
    "spoken_digits 24 x 32, convnet": (lambda: spoken_digits(size=(24, 32), batch_size=64), lambda: convnet(10), 2),
    "fashion_mnist, resnet_small": (lambda: fashion_mnist(batch_size=128), lambda: resnet_small(10, width=8), 1),
    "beans 32 px, torchvision ResNet": (lambda: beans(size=32, batch_size=16), torchvision_resnet, 1.5),
}
OPTIMIZERS = {   # class, the lowest of nine peaks
    "AdamW": (AdamW, 1e-4), "SGD": (functools.partial(SGD, momentum=0.9), 1e-3),
}


# --- the record

def final_loss(make, lr, epochs) -> float:
    "Validation loss after a one-cycle run with this peak; infinite where the run diverged"
    learner = make()
    try: learner.fit(Recipe(lr=one_cycle(lr)), epochs, progress=False)
    except FastcourseError: return float("inf")
    return learner.evaluate()["loss"]


def sweep(learner, seed) -> dict:
    found = lr_find(learner)
    return dict(seed=seed, losses=[float(f"{x:.5g}") for x in found.losses], stopped=found.stop_reason)


def record_task(task, make, lowest, epochs) -> None:
    "Completes `task`: the sweeps, the nine peaks, four more around the best, more seeds near it"
    def run(lrs, seeds):
        for lr in lrs:
            at = next((i for i, done in enumerate(task["grid"]) if abs(np.log(lr / done)) < 1e-3), len(task["grid"]))
            if at == len(task["grid"]): task["grid"].append(lr), task["grid_losses"].append([])
            losses = task["grid_losses"][at]
            losses += [final_loss(lambda: make(100 + seed), lr, epochs) for seed in range(len(losses), seeds)]
    task["sweeps"] = task["sweeps"] or [sweep(make(seed), seed) for seed in SEEDS]
    run([lowest * 10 ** (k / 2) for k in range(9)], seeds=2)
    best = np.log10(task["grid"][:9])[np.argmin([np.mean(losses[:2]) for losses in task["grid_losses"][:9]])]
    run(10 ** (best + np.array([-0.75, -0.25, 0.25, 0.75])), seeds=2)
    run([lr for lr in task["grid"] if abs(np.log10(lr) - best) < 0.99], seeds=5)


def record():
    torch.set_num_threads(1)
    tasks = json.loads(RECORD.read_text())["tasks"] if RECORD.exists() else {}
    for pair, (load, model, epochs) in PAIRS.items():
        data = load()
        for name, (optimizer, lowest) in OPTIMIZERS.items():
            task = tasks.setdefault(f"{pair}, {name}", dict(sweeps=[], grid=[], grid_losses=[]))
            record_task(task, lambda seed: Learner(model, data, loss=F.cross_entropy, optimizer=optimizer, seed=seed), lowest, epochs)
            save("finder_sweeps", sweep="1e-6 to 10, 16 points a decade", tasks=tasks)
            print(pair, name, [f"{lr:.2g}: {np.mean(losses):.3g}" for lr, losses in sorted(zip(task["grid"], task["grid_losses"]))], flush=True)


# --- the rules: rates and losses of a sweep to a rate

def _as_fastai(lrs, losses):
    smoothed, first = smooth(losses, 0.98), len(losses) // 10
    return np.asarray(lrs)[first:-5], smoothed[first:-5]


def minimum_by_10(lrs, losses):
    lrs, losses = _as_fastai(lrs, losses)
    return lrs[np.argmin(losses)] / 10


def steep(lrs, losses):
    "Where the loss falls fastest over the logarithm of the rate"
    lrs, losses = _as_fastai(lrs, losses)
    return lrs[np.argmin(np.diff(losses) / np.diff(np.log(lrs)))]


def valley(lrs, losses):
    "Halfway through the longest falling subsequence: at a third of it plus half a third"
    lrs, losses = _as_fastai(lrs, losses)
    length = np.ones(len(losses), dtype=int)
    for i in range(1, len(losses)): length[i] = 1 + max((length[j] for j in range(i) if losses[j] > losses[i]), default=0)
    end = int(np.argmax(length))
    third = length[end] / 3
    return lrs[max(end - length[end], 0) + int(third) + int(third / 2)]


def slide(lrs, losses, width=15, threshold=0.005):
    "A window of 15 points moves in from the right while the slopes at its two ends differ by more than a threshold; its left end"
    lrs, losses = _as_fastai(lrs, losses)
    slope, right = np.gradient(losses), len(losses) - 1
    found = lrs[right - width]
    while right - width >= 0 and abs(slope[right] - slope[right - width]) > threshold:
        found, right = lrs[right - width], right - 1
    return found


def ours(lrs, losses):
    found = suggest(lrs, losses)
    return found.lr if found else np.nan


RULES = {"fastcourse": ours, "valley": valley, "slide": slide, "minimum/10": minimum_by_10, "steep": steep}


# --- the judgement

def cubic(task):
    "(log rate of the best mean, coefficients, log of the fit's lowest value) of the runs within a decade of the best"
    at, best = np.log10(task["grid"]), np.log10(task["grid"])[np.argmin([min(np.mean(losses), 1e3) for losses in task["grid_losses"]])]
    near = [(x - best, np.log(min(loss, 1e3))) for x, losses in zip(at, task["grid_losses"]) for loss in losses if abs(x - best) < 1.05]
    fit = np.polyfit(*zip(*near), 3)
    return best, fit, np.polyval(fit, np.linspace(-1, 1, 401)).min()


def excess(task, lr) -> float:
    "Loss at `lr` over the best, minus 1, by the cubic where it holds"
    best, fit, lowest = cubic(task)
    if not abs(np.log10(lr) - best) < 1.05: return raw_excess(task, lr)
    return float(np.exp(np.polyval(fit, np.log10(lr) - best) - lowest) - 1)


def standard_error(task) -> float:
    "The median, over rates with five runs, of the relative standard error of their mean"
    sure = [losses for losses in task["grid_losses"] if len(losses) >= 5 and np.isfinite(losses).all()]
    return float(np.median([np.std(np.log(losses), ddof=1) / len(losses) ** 0.5 for losses in sure]))


def raw_excess(task, lr) -> float:
    "Loss at `lr` over the best of the grid, minus 1; a rate beyond the grid's ends counts as its end"
    means, order = np.array([min(np.mean(losses), 1e3) for losses in task["grid_losses"]]), np.argsort(task["grid"])
    return float(np.exp(np.interp(np.log(lr), np.log(task["grid"])[order], np.log(means)[order])) / means.min() - 1)


def mean_of(sweeps):
    "Rates and mean losses of several sweeps, as far as the shortest came"
    n = min(len(s["losses"]) for s in sweeps)
    return LRS[:n], np.mean([s["losses"][:n] for s in sweeps], axis=0)


def judge_rule(tasks, rule, sweeps=1) -> dict:
    "Each of the ten seeds gives one suggestion, from its sweep and, with `sweeps`, those of the seeds that follow"
    found = {name: np.array([rule(*mean_of([task["sweeps"][(i + j) % 10] for j in range(sweeps)])) for i in SEEDS]) for name, task in tasks.items()}
    over = {name: np.array([excess(tasks[name], lr) for lr in lrs]) for name, lrs in found.items()}
    every = np.concatenate(list(over.values()))
    rows = {name: dict(lr_median=float(f"{np.nanmedian(found[name]):.3g}"), none=int(np.isnan(found[name]).sum()), spread=round(float(np.nanmax(found[name]) / np.nanmin(found[name])), 2),
                       within_10=round(float((over[name] <= 0.1).mean()), 2), worst=round(float(np.nanmax(over[name])), 3)) for name in tasks}
    given = every[~np.isnan(every)]
    raw = np.array([raw_excess(tasks[name], lr) for name in tasks for lr in found[name] if not np.isnan(lr)])
    return dict(within_5=round(float((given <= 0.05).mean()), 3), within_10=round(float((given <= 0.1).mean()), 3), median_excess=round(float(np.median(given)), 3),
                worst=round(float(given.max()), 3), raw_within_10=round(float((raw <= 0.1).mean()), 3), raw_worst=round(float(raw.max()), 3), given=len(given), none=len(every) - len(given), tasks=rows)


def main():
    recorded = json.loads(RECORD.read_text())
    tasks, results = recorded["tasks"], {}
    for name, rule, sweeps in [*((name, rule, 1) for name, rule in RULES.items()), ("fastcourse, 3 sweeps", ours, 3)]:
        results[name] = judge_rule(tasks, rule, sweeps)
        print(f"{name:22}", {k: v for k, v in results[name].items() if k != "tasks"})
    for name in tasks: print(f"{name:45}", {rule: tuple(r["tasks"][name].values()) for rule, r in results.items()})
    save("finder", standard_error={name: round(standard_error(task), 3) for name, task in tasks.items()}, recorded=dict(time=recorded["time"], machine=recorded["machine"]), rules=results)


if __name__ == "__main__": record() if sys.argv[1:] == ["record"] else main()
