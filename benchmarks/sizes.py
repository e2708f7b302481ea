"""What lesson 3 claims about image size: `python benchmarks/sizes.py time` on an idle machine (two minutes), then
`python benchmarks/sizes.py chest_xray beans fashion_mnist why days` (over an hour on one core; several processes may share them).

Five seeds, one network, one learning rate for all arms of a set: what the finder suggests at full size, which favours no arm that
begins smaller (0.01 where that sweep never descends). `fixed` trains at full size throughout; `growing_epochs` as many
epochs with sizes that grow; `growing_time` the same sizes with so many more epochs that its steps take the time of those of `fixed`; `only_16` one smaller size throughout.
Every network is judged at the size at which it ended. Seconds are not those of the run, which other processes disturb, but the steps of
its plan, each at the median that `time` found for its size on one core. `days`: volatility of the pound a week ahead, from windows of 128 daily returns; a size
is a number of bars.
"""
import json
import sys
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW

from fastcourse import (Learner, Recipe, Stages, auc, beans, bn_refresh, chest_xray, convnet, fashion_mnist, from_arrays, fx_daily, interval, join, lr_find,
                        one_cycle, progressive, recall_at, warmup_stable_decay)
from fastcourse.train.core import timer
from fastcourse.train.preflight import full_rows
from result import FOLDER, save

SEEDS, FALSE_ALARMS = (42, 1, 2, 3, 4), 0.05


def rounded(value):
    if isinstance(value, dict): return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)): return [rounded(v) for v in value]
    return round(float(value), 4) if isinstance(value, (float, np.floating)) else value


def trained(learner, recipe, epochs):
    "The user's own loop, without evaluations"
    for batch in learner.batches(learner.plan(recipe, epochs)): learner.step(batch)
    return learner


def recall(scores, targets): return recall_at(scores, targets, FALSE_ALARMS).recall


def scores_of(learner, part, size):
    said = learner.predict(part, size=size)
    return (said.scores[:, 1] - said.scores[:, 0]).numpy(), said.targets.numpy()


def of_films(learner, size) -> dict:
    out = {}
    for part in ("valid", "test"):
        scores, targets = scores_of(learner, part, size)
        by = interval(recall, scores, targets, getattr(learner.data, part).meta["group"])
        out[part] = dict(recall=[by.value, by.low, by.high], auc=auc(scores, targets))
    return out


def lead(pairs, targets) -> float:
    "Mean over seeds of the recall of the first half of the columns minus that of the second, column by column"
    half = pairs.shape[1] // 2
    return np.mean([recall(pairs[:, i], targets) - recall(pairs[:, half + i], targets) for i in range(half)])


def leads_over_fixed(data, scores: dict) -> dict:
    "For each arm and split, its mean lead in recall over `fixed`, both read on the same draws of patients: value, low, high"
    out = {}
    for part in ("valid", "test"):
        split = getattr(data, part)
        for arm in {arm for arm, _, _ in scores} - {"fixed"}:
            pairs = np.stack([scores[a, seed, part] for a in (arm, "fixed") for seed in SEEDS], axis=1)
            i = interval(lead, pairs, split.y.numpy(), split.meta["group"])
            out.setdefault(part, {})[arm] = [i.value, i.low, i.high]
    return out


def judged(learner, size) -> dict:
    out = {part: learner.evaluate(part, size=size) for part in ("valid", "test") if getattr(learner.data, part) is not None}
    if "pneumonia" in learner.data.classes: out |= {f"{part}_films": v for part, v in of_films(learner, size).items()}
    return out


def elsewhere(learner, sizes) -> dict:
    "Judged at sizes other than its own, as it is and with BatchNorm's statistics measured at that size"
    out, kept = {}, learner.snapshot()
    for size in sizes:
        plain = learner.evaluate(size=size)
        bn_refresh(learner, size=size)
        out[size] = dict(as_it_is=plain, refreshed=learner.evaluate(size=size))
        learner.restore(kept)
    return out


def milliseconds(learner, full) -> dict:
    "Of one step at each side, its batch included: medians of nine, in turns"
    sides = [side for side in (8, 12, 14, 16, 19, 20, 23, 24, 25, 28, 32, 48, 53, 64, 91, 96, 128) if side <= full]
    plan = learner.plan(Recipe(lr=0.0, size=Stages(*((1 / len(sides), side) for side in sides))), 16)
    rows = list(full_rows(plan).values())
    took, batches = [], learner.batches(plan.of(rows * 10))
    for _ in range(10 * len(rows)):
        with timer() as t: learner.step(next(batches))
        took.append(1000 * t.seconds)
    return {row.size: np.median(took[i + len(rows) :: len(rows)]) for i, row in enumerate(rows)}


def seconds_of(plan, ms) -> float:
    "What the steps of a plan take, by the idle machine's milliseconds for a full batch"
    full = {size: row.n for size, row in full_rows(plan).items()}
    return sum(ms[str(row.size)] / 1000 * row.n / full[row.size] for row in plan.rows)


def compared(name, data, net, full, epochs, arms: dict, look=()) -> dict:
    "All arms of a set: {arm: (sizes, epochs or None for as much time as fixed)}"
    ms = json.loads((FOLDER / "sizes_time.json").read_text())["milliseconds"][name]
    def learner(seed): return Learner(net, data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")
    found = lr_find(learner(SEEDS[0]), sweeps=3, size=full)
    peak = found.suggestion.lr if found.suggestion else 0.01
    def plan(sizes, epochs): return learner(SEEDS[0]).plan(Recipe(lr=one_cycle(peak), size=sizes), epochs)
    budget, runs, scores = seconds_of(plan(full, epochs), ms), [], {}
    for seed, (arm, (sizes, own)) in product(SEEDS, arms.items()):
        long = own or round(epochs * budget / seconds_of(plan(sizes, epochs), ms), 2)
        one, rows = trained(learner(seed), Recipe(lr=one_cycle(peak), size=sizes), long), plan(sizes, long)
        last = rows.rows[-1].size
        runs.append(dict(arm=arm, seed=seed, size=last, epochs=long, steps=len(rows), seconds=seconds_of(rows, ms), **judged(one, last)))
        if "pneumonia" in data.classes: scores |= {(arm, seed, part): scores_of(one, part, last)[0] for part in ("valid", "test")}
        if arm in look: runs[-1]["elsewhere"] = elsewhere(one, look[arm])
        print(rounded({k: runs[-1][k] for k in ("arm", "seed", "seconds", "epochs", "valid")}), flush=True)
    return dict(rate=peak, finder=repr(found), full=full, runs=runs, leads_in_recall=leads_over_fixed(data, scores) if scores else {})


SETTINGS = dict(chest_xray=lambda: (chest_xray(batch_size=64), lambda: convnet(2, width=8, depth=4)),
                beans=lambda: (beans(batch_size=32), lambda: convnet(3, channels=3, width=8, depth=4)),
                fashion_mnist=lambda: (fashion_mnist(), lambda: convnet(10)),
                days=lambda: (bars("returns"), bars_net))


def films() -> dict:
    growing = progressive(32, 128)
    arms = dict(fixed=(128, 3), growing_epochs=(growing, 3), growing_time=(growing, None), **{f"only_{s}": (s, 3) for s in (16, 32, 64)})
    return compared("chest_xray", *SETTINGS["chest_xray"](), 128, 3, arms, look=dict(only_64=(32, 48, 64, 96, 128)))


def leaves() -> dict:
    growing = progressive(32, 128)
    arms = dict(fixed=(128, 12), growing_epochs=(growing, 12), growing_time=(growing, None), only_32=(32, 12), only_64=(64, 12))
    return compared("beans", *SETTINGS["beans"](), 128, 12, arms, look=dict(only_64=(32, 48, 64, 96, 128)))


def clothes() -> dict:
    arms = dict(fixed=(28, 5), growing_epochs=(progressive(14, 28), 5), growing_time=(progressive(14, 28), None), late_time=(progressive(14, 28, finetune=0.5), None),
                from_20_time=(progressive(20, 28), None), only_14=(14, 5))
    return compared("fashion_mnist", *SETTINGS["fashion_mnist"](), 28, 5, arms)


def why() -> dict:
    "Fashion-MNIST at equal epochs: is it the small images, the jumps, BatchNorm's memory, or the rate that is spent before the full size comes?"
    data, net = SETTINGS["fashion_mnist"]()
    peak = json.loads((FOLDER / "sizes_fashion_mnist.json").read_text())["rate"]
    growing, jump = progressive(14, 28), Stages((0.8, 14), (0.2, 28))
    arms = dict(fixed=Recipe(lr=one_cycle(peak), size=28), growing=Recipe(lr=one_cycle(peak), size=growing), one_jump=Recipe(lr=one_cycle(peak), size=jump),
                half_at_full=Recipe(lr=one_cycle(peak), size=progressive(14, 28, finetune=0.5)), low_peak=Recipe(lr=one_cycle(peak / 3), size=growing),
                late_fall=Recipe(lr=warmup_stable_decay(peak, warmup=0.25, decay=0.2), size=growing), late_fall_fixed=Recipe(lr=warmup_stable_decay(peak, warmup=0.25, decay=0.2), size=28),
                two_cycles=Recipe(lr=join((0.8, one_cycle(peak)), (0.2, one_cycle(peak))), size=jump))
    runs = []
    for seed, (arm, recipe) in product(SEEDS, arms.items()):
        one = trained(Learner(net, data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu"), recipe, 5)
        plain = one.evaluate()
        bn_refresh(one)
        runs.append(dict(arm=arm, seed=seed, valid=plain, refreshed=one.evaluate()))
        print(rounded(runs[-1]), flush=True)
    return dict(rate=peak, epochs=5, runs=runs)


# Days
BARS, HORIZON = 128, 5


def windows() -> tuple:
    "Daily returns of the pound up to 2012, in windows of 128; whether the next five days move more than five days did in the median of a year (by which the returns are divided too)"
    returns = np.log(fx_daily()["United Kingdom"].dropna()).diff().dropna()[:"2012"]
    moves = np.sqrt((returns**2).rolling(HORIZON).mean())
    ahead, usual = moves.shift(-HORIZON), moves.rolling(250).median()
    at = np.flatnonzero(ahead.notna() & usual.notna())
    x = np.stack([returns.to_numpy()[i + 1 - BARS : i + 1] / usual.iloc[i] for i in at])
    return x.astype(np.float32)[:, None], (ahead > usual).to_numpy()[at].astype(int), returns.index[at].to_numpy()


def bars(kind):
    "The last fifth of the days is for judging; the ten days before it train nothing"
    x, y, dates = windows()
    if kind == "absolute": x = np.abs(x)
    cut = int(0.8 * len(y))
    past = cut - 2 * HORIZON
    return from_arrays(x[:past], y[:past], valid=(x[cut:], y[cut:]), test=0, classes=("as usual", "volatile"), batch_size=128, series=True)


def bars_net():
    def block(a, b): return nn.Sequential(nn.Conv1d(a, b, 5, padding=2, bias=False), nn.BatchNorm1d(b), nn.ReLU(), nn.MaxPool1d(2, ceil_mode=True))
    return nn.Sequential(block(1, 16), block(16, 32), block(32, 64), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 2))


def days() -> dict:
    _, y, dates = windows()
    cut, growing = int(0.8 * len(y)), progressive(16, BARS)
    arms = dict(fixed=(BARS, 4), growing_epochs=(growing, 4), growing_time=(growing, None), **{f"only_{s}": (s, 4) for s in (8, 16, 32)})
    found = {kind: compared("days", bars(kind), bars_net, BARS, 4, arms) for kind in ("returns", "absolute")}
    return dict(days=len(y) - cut, share=float(y[cut:].mean()), first=str(dates[cut])[:10], **found)


def times() -> dict:
    "Milliseconds of a step in each set, at each size: on an idle machine, please"
    return {name: milliseconds(Learner(net, data, loss=F.cross_entropy, optimizer=AdamW, seed=SEEDS[0], device="cpu"), dict(fashion_mnist=28).get(name, 128))
            for name, make in SETTINGS.items() for data, net in [make()]}


SETS = dict(chest_xray=films, beans=leaves, fashion_mnist=clothes, why=why, days=days)


def main(names):
    torch.set_num_threads(1)
    if "time" in names: print(save("sizes_time", milliseconds=rounded(times())), flush=True)
    for name in names or SETS:
        if name in SETS: print(save(f"sizes_{name}", seeds=SEEDS, false_alarms=FALSE_ALARMS, **rounded(SETS[name]())), flush=True)


if __name__ == "__main__": main(sys.argv[1:])
