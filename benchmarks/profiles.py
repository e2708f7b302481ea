"""What lesson 1 claims in its two profiles, over five seeds: `python benchmarks/profiles.py` (some minutes on one core).

Radiology: the lesson's network on chest films of 28 pixels, its rate from a sweep, three epochs. The threshold for 5 % false
alarms is chosen on valid and then held on test; intervals resample patients, and films for comparison. Whether the normal films of the
two pools look different is asked of a small network that tells one from the other on patients it has not seen; as a control,
normal films of train against valid. Trading: a network of 13 inputs on the volatility of three currencies beside the rules that need no training,
intervals over months; and the direction of one currency a day ahead.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW

from fastcourse import (Learner, Recipe, at_threshold, auc, chest_xray, convnet, fashion_mnist, from_arrays, fx_daily, interval,
                        lr_find, one_cycle, persistence, recall_at, series_task, threshold_at)
from result import save

SEEDS, RATE = (42, 1, 2, 3, 4), 0.05
CURRENCIES = "Japan", "United Kingdom", "Canada"


def rounded(values: dict) -> dict: return {k: round(float(v), 4) if isinstance(v, (float, np.floating)) else v for k, v in values.items()}


def ends(i) -> list[float]: return [round(i.low, 4), round(i.high, 4)]


def learner_of(data, seed, width=16):
    def model(): return convnet(len(data.classes), channels=data.train.x.shape[1], width=width)
    return Learner(model, data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")


def sweep(learner) -> dict:
    s = lr_find(learner).suggestion
    return dict(lr=s and s.lr, low=s and s.low, high=s and s.high)


def scores_of(learner, split):
    said = learner.predict(split)
    return (said.scores[:, 1] - said.scores[:, 0]).numpy(), said.targets.numpy()


def at_work(scores, targets, groups, threshold) -> dict:
    "Recall and false-alarm rate at a threshold, with intervals by patient and by film"
    def recall(s, t): return at_threshold(s, t, threshold).recall
    def alarms(s, t): return at_threshold(s, t, threshold).false_alarms
    point = at_threshold(scores, targets, threshold)
    out = dict(recall=point.recall, false_alarms=point.false_alarms, accuracy=float(((scores > 0) == targets).mean()), auc=auc(scores, targets))
    for name, metric in dict(recall=recall, false_alarms=alarms).items():
        out[f"{name}_by_patient"] = ends(interval(metric, scores, targets, groups))
        out[f"{name}_by_film"] = ends(interval(metric, scores, targets))
    return rounded(out)


def films(data, seed) -> dict:
    learner = learner_of(data, seed)
    found = sweep(learner)
    learner.fit(Recipe(lr=one_cycle(found["lr"])), 3, progress=False)
    both = {name: scores_of(learner, name) for name in ("valid", "test")}
    threshold = threshold_at(*both["valid"], RATE)
    out = {name: at_work(*pair, getattr(data, name).meta["group"], threshold) for name, pair in both.items()}
    s, t = both["valid"]
    usual = at_threshold(s, t, 0)
    share = float(both["test"][1].mean())
    own = recall_at(*both["test"], RATE)
    wrong = (both["test"][0] > 0) != both["test"][1]
    return dict(seed=seed, **rounded(found), **out,
                valid_accuracy_at_the_shares_of_test=round(share * usual.recall + (1 - share) * (1 - usual.false_alarms), 4),
                test_errors=int(wrong.sum()), of_them_false_alarms=int((wrong & (both["test"][1] == 0)).sum()),
                test_recall_if_the_threshold_were_chosen_on_test=round(own.recall, 4))


def told_apart(a, b, seed) -> float:
    "AUC of a small network that tells the normal films of split `b` from those of `a`, on patients it has not seen"
    parts = [(part.x[part.y == 0], part.meta["group"][part.y.numpy() == 0]) for part in (a, b)]
    x, groups = torch.cat([x for x, _ in parts]), np.concatenate([g for _, g in parts])
    y = np.repeat(["a", "b"], [len(x) for x, _ in parts])
    data = from_arrays(x, y, groups=groups, valid=0, test=0.33, seed=seed, batch_size=64)
    learner = learner_of(data, seed, width=8)
    learner.fit(Recipe(lr=one_cycle(0.01)), 8, progress=False)
    return round(auc(*scores_of(learner, "test")), 3)


def mlp(data, seed):
    n = data.train.x.shape[1]
    def model(): return nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    return Learner(model, data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")


def curves(history) -> dict:
    return dict(train=[round(e["loss"], 4) for e in history.epochs], valid=[round(e["valid_loss"], 4) for e in history.epochs])


def right(learner, split) -> np.ndarray:
    scores, targets = scores_of(learner, split)
    return ((scores > 0) == targets).astype(float)


def rule_right(data, days) -> np.ndarray:
    scores = data.test.x[:, data.card.features.index(f"volatility of {days} days")].numpy() - 1
    return ((scores > 0) == data.test.y.numpy()).astype(float)


def volatility(prices, currency, seed) -> dict:
    data = series_task(prices, currency)
    learner = mlp(data, seed)
    found = sweep(learner)
    history = learner.fit(Recipe(lr=one_cycle(found["lr"])), 10, progress=False)
    net, months = right(learner, "test"), data.test.meta["date"].astype("datetime64[M]")
    ahead = {days: interval(lambda s, t: (s - t).mean(), net, rule_right(data, days), months) for days in (5, 21)}
    ranked = dict(network=auc(*scores_of(learner, "test")), rule_21=persistence(data, 21).loc["test", "auc"])
    return dict(seed=seed, currency=currency, **rounded(found), **curves(history), network=round(net.mean(), 4),
                auc=rounded(ranked), **{f"ahead_of_{d}_days": [round(i.value, 4), *ends(i)] for d, i in ahead.items()})


def direction(prices, seed) -> dict:
    data = series_task(prices, "Japan", "direction", 1)
    learner = mlp(data, seed)
    found = sweep(learner)
    history = learner.fit(Recipe(lr=0.01), 30, progress=False)
    hit, months = right(learner, "test"), data.test.meta["date"].astype("datetime64[M]")
    return dict(seed=seed, **found, **curves(history), train_accuracy=round(right(learner, "train").mean(), 4), test_accuracy=round(hit.mean(), 4),
                by_month=ends(interval(lambda s, t: s.mean(), hit, hit, months)), volatility_at_the_same_rate=long_run(prices, seed))


def long_run(prices, seed) -> dict:
    "The volatility of the same currency, trained as long and at the same rate: the curve that is no noise"
    return curves(mlp(series_task(prices, "Japan"), seed).fit(Recipe(lr=0.01), 30, progress=False))


def main():
    torch.set_num_threads(1)
    xray, clothes, prices = chest_xray(size=28, batch_size=128), fashion_mnist(), fx_daily()
    apart = dict(pool_against_test=[told_apart(xray.train, xray.test, s) for s in SEEDS],
                 train_against_valid=[told_apart(xray.train, xray.valid, s) for s in SEEDS])
    print(apart, flush=True)
    seen = []
    for seed in SEEDS:
        seen.append(films(xray, seed))
        print(seen[-1], flush=True)
    rules = {c: {d: rounded(persistence(series_task(prices, c), d).loc["test"].to_dict()) for d in (5, 21)} for c in CURRENCIES}
    trading = dict(rules=rules, volatility=[volatility(prices, c, s) for c in CURRENCIES for s in SEEDS], direction=[direction(prices, s) for s in SEEDS])
    rates = [dict(seed=s, **rounded(sweep(learner_of(clothes, s)))) for s in SEEDS]
    print(save("profiles", seeds=SEEDS, radiology=dict(false_alarms=RATE, normal_films_told_apart_auc=apart, films=seen, clothes=rates), trading=trading))


if __name__ == "__main__": main()
