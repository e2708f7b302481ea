"""How much of a validation loss is BatchNorm's memory: what lessons 1 and 2 say of it: `python benchmarks/refreshed.py` (ten minutes of one core).

Every network is judged as its run left it, and after `bn_refresh`, which changes no weight. Five seeds each.
`guesses`: lesson 1's network, pictures and two epochs, at the rate 0.01 and at the rate found on the seed's own sweep, both held.
`schedules`: lesson 2's, four epochs at 14 pixels; the constant rate and one-cycle, each at the peak that schedules.json chose for it.
`held`: lesson 2's rate of 0.03 held for four epochs, after each of them. `films`: chest films of 28 pixels, three epochs at the rate
that schedules_profiles.json chose, constant and one-cycle.
"""
import json

import torch
import torch.nn.functional as F
from torch.optim import AdamW

from fastcourse import Learner, Recipe, bn_refresh, chest_xray, constant, convnet, fashion_mnist, lr_find, one_cycle, warmup_stable_decay
from result import FOLDER, save

SEEDS = 42, 1, 2, 3, 4


def learner(data, seed, width=16):
    return Learner(lambda: convnet(len(data.classes), channels=1, width=width), data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")


def judged(one) -> dict: return {f"{part}_{name}": round(value, 4) for part in ("train", "valid", "test") for name, value in one.evaluate(part).items()}


def both(one, **facts) -> dict:
    "As it is and refreshed; the learner is put back"
    kept, plain = one.snapshot(), judged(one)
    bn_refresh(one)
    found = facts | dict(as_it_is=plain, refreshed=judged(one))
    one.restore(kept)
    print(found, flush=True)
    return found


def trained(data, seed, curve, epochs, width=16):
    one = learner(data, seed, width)
    one.fit(Recipe(lr=curve), epochs, progress=False)
    return one


def guesses() -> list:
    data = fashion_mnist()
    return [both(trained(data, seed, constant(rate), 2), seed=seed, rate=rate, name=name)
            for seed in SEEDS for name, rate in {"0.01": 0.01, "found": lr_find(learner(data, seed)).lr}.items()]


def schedules() -> list:
    data, chosen = fashion_mnist(size=14), json.loads((FOLDER / "schedules.json").read_text())["schedules"]
    curves = dict(constant=constant(chosen["constant"]["rate"]), one_cycle=one_cycle(chosen["one_cycle"]["rate"]))
    return [both(trained(data, seed, curve, 4, width=8), seed=seed, schedule=name) for seed in SEEDS for name, curve in curves.items()]


def held() -> list:
    data, found = fashion_mnist(size=14), []
    for seed in SEEDS:
        one = learner(data, seed, width=8)
        plan = one.plan(Recipe(lr=warmup_stable_decay(0.03, warmup=0.05, decay=0)), 4)
        for batch in one.batches(plan):
            one.step(batch)
            if batch.row.first + batch.n == plan.n: found.append(both(one, seed=seed, epoch=batch.epoch + 1))
    return found


def films() -> list:
    data, chosen = chest_xray(size=28, batch_size=128), json.loads((FOLDER / "schedules_profiles.json").read_text())["radiology"]["rate"]
    curves = dict(constant=constant(chosen["constant"]), one_cycle=one_cycle(chosen["one_cycle"]))
    return [both(trained(data, seed, curve, 3), seed=seed, schedule=name) for seed in SEEDS for name, curve in curves.items()]


def main():
    torch.set_num_threads(1)
    print(save("refreshed", seeds=SEEDS, schedules=schedules(), held=held(), films=films(), guesses=guesses()))


if __name__ == "__main__": main()
