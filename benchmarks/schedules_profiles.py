"""What lesson 2 claims in its two profiles, over five seeds: `python benchmarks/schedules_profiles.py` (eight minutes on one core).

Radiology: the lesson's network on chest films of 28 pixels, three epochs, two schedules at three rates each. Each schedule's
rate is the one with the lowest mean validation loss: all had the same minutes and the same number of tries. Recall at 5 % false alarms
is read with the threshold of those very films; the difference of two schedules is resampled by patient, both runs on the same draws.
Trading: volatility five days ahead in five walk-forward folds up to 2012, beside the rules that need no training; intervals
over months; "best_rate" is the better of two on those very days, for both schedules alike. What a leak is worth is measured on
the same days: a shuffled split, and a walk-forward without a gap.
"""
from dataclasses import replace
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW

from fastcourse import (Learner, Recipe, auc, chest_xray, constant, convnet, from_arrays, fx_daily, interval, one_cycle, recall_at,
                        series_task, walk_forward)
from result import save

SEEDS, FALSE_ALARMS, EPOCHS = (42, 1, 2, 3, 4), 0.05, 3
SCHEDULES = dict(constant=constant, one_cycle=one_cycle)
RATES = dict(films=(0.003, 0.01, 0.03), days=(0.003, 0.01))
CURRENCIES, FOLDS, HORIZON, EMBARGO, DAYS_EPOCHS = ("Japan", "United Kingdom", "Canada"), 5, 5, 5, 5


def rounded(value):
    if isinstance(value, dict): return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)): return [rounded(v) for v in value]
    return round(float(value), 4) if isinstance(value, (float, np.floating)) else value


def ends(i) -> list[float]: return [i.value, i.low, i.high]


def scores_of(learner, split):
    said = learner.predict(split)
    return (said.scores[:, 1] - said.scores[:, 0]).numpy(), said.targets.numpy()


# Radiology
def trained_on_films(data, curve, seed):
    learner = Learner(lambda: convnet(2, channels=1), data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")
    run = learner.fit(Recipe(lr=curve), EPOCHS, progress=False)
    return dict(seconds=run.seconds, valid_loss=run.epochs[-1]["valid_loss"], **{part: scores_of(learner, part) for part in ("valid", "test")})


def recall(scores, targets): return recall_at(scores, targets, FALSE_ALARMS).recall


def ahead(pair, targets): return recall(pair[:, 0], targets) - recall(pair[:, 1], targets)


def facts(run) -> dict:
    read = {f"{part}_{f.__name__}": f(*run[part]) for part in ("valid", "test") for f in (recall, auc)}
    return dict(seconds=run["seconds"], valid_loss=run["valid_loss"], **read, valid_missed=recall_at(*run["valid"], FALSE_ALARMS).missed)


def compared(a, b, data) -> dict:
    "Run a against run b on the same films: the difference in recall, and what each has alone"
    out = {}
    for part in ("valid", "test"):
        pair, targets = np.stack([a[part][0], b[part][0]], 1), a[part][1]
        groups = getattr(data, part).meta["group"]
        out[part] = dict(by_patient=ends(interval(ahead, pair, targets, groups)), by_film=ends(interval(ahead, pair, targets)),
                         first_alone=ends(interval(recall, *a[part], groups)), second_alone=ends(interval(recall, *b[part], groups)))
    return out


def films() -> dict:
    data, runs = chest_xray(size=28, batch_size=128), {}
    for (name, curve), rate, seed in product(SCHEDULES.items(), RATES["films"], SEEDS):
        runs[name, rate, seed] = trained_on_films(data, curve(rate), seed)
        print(name, rate, seed, rounded(facts(runs[name, rate, seed])), flush=True)
    loss = {(name, rate): np.mean([runs[name, rate, s]["valid_loss"] for s in SEEDS]) for name in SCHEDULES for rate in RATES["films"]}
    best = {name: min(RATES["films"], key=lambda rate: loss[name, rate]) for name in SCHEDULES}
    of = {(name, s): runs[name, best[name], s] for name in SCHEDULES for s in SEEDS}
    return dict(rate=best, mean_valid_loss={f"{n} {r}": v for (n, r), v in loss.items()},
                runs=[dict(schedule=n, rate=r, seed=s, **facts(run)) for (n, r, s), run in runs.items()],
                one_cycle_ahead_of_constant=[compared(of["one_cycle", s], of["constant", s], data) for s in SEEDS],
                seed_ahead_of_the_next={n: [ahead(np.stack([of[n, a]["valid"][0], of[n, b]["valid"][0]], 1), of[n, a]["valid"][1])
                                            for a, b in zip(SEEDS, SEEDS[1:])] for n in SCHEDULES})


# Trading
def trained_on_days(days, train, test, curve, seed):
    "Scores of the test rows, by a network that was trained on the train rows"
    data = from_arrays(days.x[train], days.y[train], test=(days.x[test], days.y[test]), valid=0, classes=("as usual", "volatile"), batch_size=256)
    n = days.x.shape[1]
    def model(): return nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    learner = Learner(model, data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")
    learner.fit(Recipe(lr=curve), DAYS_EPOCHS, progress=False)
    return scores_of(learner, "test")[0]


def walked(days, folds, curve, seed): return np.concatenate([trained_on_days(days, *fold, curve, seed) for fold in folds])


def currency_days(prices, currency):
    "The days before 2013, and for each rule its score"
    data = series_task(prices, currency, valid=0)
    days = data.train
    rules = {d: days.x[:, data.card.features.index(f"volatility of {d} days")].numpy() - 1 for d in (5, 21)}
    return replace(days, x=days.x.numpy(), y=days.y.numpy()), rules


def right(scores, y): return ((scores > 0) == y).astype(float)


def difference(a, b): return (a - b).mean()


def one_currency(prices, currency) -> dict:
    days, rules = currency_days(prices, currency)
    folds = walk_forward(days.meta["date"], FOLDS, EMBARGO, HORIZON)
    rows = np.concatenate([test for _, test in folds])
    y, months = days.y[rows], days.meta["date"][rows].astype("datetime64[M]")
    hits = {(n, r, s): walked(days, folds, SCHEDULES[n](r), s) for n in SCHEDULES for r in RATES["days"] for s in SEEDS}
    read = [dict(schedule=n, rate=r, seed=s, accuracy=right(v, y).mean(), auc=auc(v, y)) for (n, r, s), v in hits.items()]
    ranked = {n: max(RATES["days"], key=lambda r: np.mean([e["accuracy"] for e in read if e["schedule"] == n and e["rate"] == r])) for n in SCHEDULES}
    ahead_by = {f"{r}": [ends(interval(difference, right(hits["one_cycle", r, s], y), right(hits["constant", r, s], y), months)) for s in SEEDS] for r in RATES["days"]}
    mean = {n: np.mean([right(hits[n, ranked[n], s], y) for s in SEEDS], axis=0) for n in ranked}
    pairs = dict(one_cycle_ahead_of_constant=(mean["one_cycle"], mean["constant"])) | {
        f"{n}_ahead_of_{d}_days": (mean[n], right(rules[d][rows], y)) for n in ranked for d in rules}
    return dict(days=len(rows), share=y.mean(), first_test=str(days.meta["date"][rows[0]]), rules={d: dict(accuracy=right(v[rows], y).mean(), auc=auc(v[rows], y)) for d, v in rules.items()},
                runs=read, best_rate=ranked, one_cycle_ahead_of_constant_at_the_same_rate=ahead_by,
                over_seeds={name: ends(interval(difference, *pair, months)) for name, pair in pairs.items()})


def leaks(prices) -> dict:
    "Accuracy with days shuffled before they are split, without a gap, and with it: one currency, constant rate 0.01"
    days, rules = currency_days(prices, "Japan")
    gap, none = (walk_forward(days.meta["date"], FOLDS, *g) for g in ((EMBARGO, HORIZON), (0, 0)))
    rows = np.concatenate([test for _, test in gap])
    out = {name: [right(walked(days, folds, constant(0.01), s), days.y[rows]).mean() for s in SEEDS] for name, folds in (("gap", gap), ("no_gap", none))}
    shuffled = []
    for s in SEEDS:
        order = np.random.default_rng(s).permutation(len(days.y))
        test, train = order[: len(order) // 6], order[len(order) // 6 :]
        shuffled.append([right(trained_on_days(days, train, test, constant(0.01), s), days.y[test]).mean(), right(rules[21][test], days.y[test]).mean()])
    return out | dict(shuffled=[a for a, _ in shuffled], rule_on_the_shuffled=[b for _, b in shuffled])


def main():
    torch.set_num_threads(1)
    prices = fx_daily()
    trading = dict(leaks=leaks(prices), **{c: one_currency(prices, c) for c in CURRENCIES})
    print(trading, flush=True)
    print(save("schedules_profiles", seeds=SEEDS, trading=rounded(trading), radiology=rounded(dict(false_alarms=FALSE_ALARMS, epochs=EPOCHS, **films()))))


if __name__ == "__main__": main()
