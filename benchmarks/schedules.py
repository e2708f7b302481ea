"""What lesson 2 claims about schedules, over five seeds: `python benchmarks/schedules.py` (about ten minutes of one core).

Comparison: the same network, the same pictures, the same number of steps; only the schedule differs: constant, step (a tenth
at half time, a hundredth at three quarters), cosine, one-cycle, WSD. Each schedule gets the peak rate with which *it* has the lowest
validation loss over two other seeds; judged is the test split, which played no part in that. The seeds fix weights and
order, so each seed is a pair. Momentum: one-cycle with the momentum constant, moving against the rate (Smith 2018), and moving
with it; SGD on a network without BatchNorm, its rates chosen in the same way, and AdamW at one-cycle's own rate.
Intervals are of paired differences, by Student's t with four degrees of freedom.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW

from fastcourse import Learner, Recipe, constant, convnet, cosine, fashion_mnist, one_cycle, warmup_stable_decay
from fastcourse.train.curves import half_cosine, through
from result import save

SEEDS, CHOOSING, EPOCHS, SIZE, WIDTH = (42, 1, 2, 3, 4), (101, 102), 4, 14, 8
RATES, SGD_RATES = (0.003, 0.01, 0.03, 0.1, 0.3), (0.03, 0.1, 0.3)
T_97_5 = 2.776          # Student's t, four degrees of freedom: 95 % lie between minus this and this


def steps(peak): return lambda p: peak * (1 if p < 0.5 else 0.1 if p < 0.75 else 0.01)


SCHEDULES = dict(constant=constant, step=steps, cosine=lambda peak: cosine(peak, 0), one_cycle=one_cycle, wsd=warmup_stable_decay)


def moving(first, middle): return through(half_cosine, (0, first), (0.25, middle), (1, first))


MOMENTA = dict(constant=0.9, counter=moving(0.95, 0.85), along=moving(0.85, 0.95))


def with_adamw(data, seed): return Learner(lambda: convnet(10, width=WIDTH), data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")


def with_sgd(data, seed):
    def model(): return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Learner(model, data, loss=F.cross_entropy, optimizer=lambda p: SGD(p, lr=1.0, momentum=0.9), seed=seed, device="cpu")


def trained(made, recipe) -> dict:
    "The training loss of the last epoch, and what valid and test say"
    run = made.fit(recipe, EPOCHS, progress=False, stop_at_nan=False)
    test, valid = made.evaluate("test"), run.epochs[-1]
    return dict(train_loss=run.epochs[-1]["loss"], valid_loss=valid["valid_loss"], test_loss=test["loss"], test_accuracy=test["accuracy"])


def chosen(make, data, recipe, rates) -> tuple[float, dict]:
    "The rate of the lowest mean validation loss, and that loss for each rate"
    losses = {rate: float(np.mean([trained(make(data, seed), recipe(rate))["valid_loss"] for seed in CHOOSING])) for rate in rates}
    return min(losses, key=lambda rate: np.nan_to_num(losses[rate], nan=np.inf)), losses


def differences(runs, against) -> dict:
    "Mean of the paired differences in the test split, with its 95 % interval"
    out = {}
    for name in "test_loss", "test_accuracy":
        d = np.array([a[name] - b[name] for a, b in zip(runs, against)])
        half = T_97_5 * d.std(ddof=1) / len(d) ** 0.5
        out[name] = [round(float(v), 5) for v in (d.mean(), d.mean() - half, d.mean() + half)]
    return out


def summary(runs) -> dict:
    return {name: [round(float(f([run[name] for run in runs])), 5) for f in (np.mean, lambda v: np.std(v, ddof=1))] for name in runs[0]}


def measured(make, data, recipes, rates) -> dict:
    "For each recipe its rate, every seed's numbers, mean and standard deviation; `recipes`: name -> function of the rate"
    out = {}
    for name, recipe in recipes.items():
        rate, losses = chosen(make, data, recipe, rates)
        runs = [trained(make(data, seed), recipe(rate)) for seed in SEEDS]
        out[name] = dict(rate=rate, chosen_by=losses, mean_and_sd=summary(runs), runs=runs)
        print(name, rate, out[name]["mean_and_sd"], flush=True)
    return out


def against(found, name) -> dict: return {other: differences(f["runs"], found[name]["runs"]) for other, f in found.items() if other != name}


def main():
    torch.set_num_threads(1)
    data = fashion_mnist(size=SIZE)
    five = measured(with_adamw, data, {name: (lambda lr, curve=curve: Recipe(lr=curve(lr))) for name, curve in SCHEDULES.items()}, RATES)
    def momentum(make, rates): return measured(make, data, {name: (lambda lr, m=m: Recipe(lr=one_cycle(lr), momentum=m)) for name, m in MOMENTA.items()}, rates)
    sgd, adamw = momentum(with_sgd, SGD_RATES), momentum(with_adamw, (five["one_cycle"]["rate"],))
    setting = dict(data="fashion_mnist", train=len(data.train), valid=len(data.valid), test=len(data.test), size=SIZE, width=WIDTH, epochs=EPOCHS, batch_size=data.batch_size)
    print(save("schedules", **setting, seeds=SEEDS, choosing=CHOOSING, schedules=five, against_one_cycle=against(five, "one_cycle"),
               momentum=dict(sgd=sgd, adamw=adamw, sgd_against_constant=against(sgd, "constant"), adamw_against_constant=against(adamw, "constant"))))


if __name__ == "__main__": main()
