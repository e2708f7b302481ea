"""What lesson 2 claims about warm-up, over five seeds: `python benchmarks/warmup.py` (about two minutes of one core).

A network of two hidden layers without BatchNorm, two epochs of small pictures. Each rate twice: from the first step on, and reached over the first
half of the run in a straight line; then held. Recorded are the highest loss as a multiple of the first, and the mean of the
last 20 losses. Three settings: AdamW; SGD with momentum; SGD where all weights start four times as large, so that the
loss starts in a steep place. For SGD the largest curvature (the top eigenvalue of the Hessian, by power iteration) over the
first 1,000 training pictures is measured before the run and after its first half, with the warm-up.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW

from fastcourse import Learner, Recipe, constant, fashion_mnist, join, linear
from result import save

SEEDS, EPOCHS, SIZE = (42, 1, 2, 3, 4), 2, 14


def network(gain):
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        for layer in net[1::2]: layer.weight.mul_(gain)
    return net


def sgd(parameters): return SGD(parameters, lr=1.0, momentum=0.9)


SETTINGS = {  # name: optimizer, factor of the first weights, rates
    "AdamW": (AdamW, 1, (0.01, 0.03, 0.1, 0.3)),
    "SGD": (sgd, 1, (0.05, 0.1, 0.2, 0.4)),
    "SGD, weights four times as large": (sgd, 4, (0.05, 0.1, 0.2, 0.4)),
}


def curvature(learner, n=1000, turns=30) -> float:
    "The largest eigenvalue, by size, of the loss's Hessian"
    x, y = learner.split("train").take(torch.arange(n))
    weights = list(learner.model.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(learner.model(x), y), weights, create_graph=True)
    v, value = [torch.randn(w.shape, generator=torch.Generator().manual_seed(0)) for w in weights], 0.0
    for _ in range(turns):
        length = sum((a * a).sum() for a in v).sqrt()
        v = [a / length for a in v]
        turned = torch.autograd.grad(slopes, weights, grad_outputs=v, retain_graph=True)
        value, v = sum((a * b).sum() for a, b in zip(v, turned)).item(), [a.detach() for a in turned]
    return value


def run(data, optimizer, gain, curve, seed) -> dict:
    learner = Learner(lambda: network(gain), data, loss=F.cross_entropy, optimizer=optimizer, seed=seed, device="cpu")
    plan, losses, seen = learner.plan(Recipe(lr=curve), EPOCHS), [], [curvature(learner)]
    for batch in learner.batches(plan):
        if batch.step == len(plan) // 2: seen.append(curvature(learner))
        losses.append(learner.step(batch).item())
    return dict(highest=np.nanmax(losses) / losses[0], last=float(np.mean(losses[-20:])), curvature=seen)


def rounded(runs) -> dict: return {name: np.round([r[name] for r in runs], 4).tolist() for name in runs[0]}


def main():
    torch.set_num_threads(1)
    data, out = fashion_mnist(size=SIZE), {}
    for name, (optimizer, gain, rates) in SETTINGS.items():
        for rate in rates:
            curves = dict(at_once=constant(rate), warmed_up=join((0.5, linear(rate / 25, rate)), (0.5, constant(rate))))
            out.setdefault(name, {})[f"{rate:g}"] = {how: rounded([run(data, optimizer, gain, curve, seed) for seed in SEEDS]) for how, curve in curves.items()}
            print(name, rate, {how: (o["highest"], o["last"], [c[-1] for c in o["curvature"]]) for how, o in out[name][f"{rate:g}"].items()}, flush=True)
    print(save("warmup", data="fashion_mnist", train=len(data.train), size=SIZE, epochs=EPOCHS, batch_size=data.batch_size, seeds=SEEDS, settings=out))


if __name__ == "__main__": main()
