"""What lesson 1 says of its rate 0.01: how much of the validation loss is BatchNorm's memory: `python benchmarks/refreshed.py` (minutes).

The lesson's network, pictures and three epochs, five seeds; the rate 0.01 and the rate found on the seed's own sweep, both held
constant. Validation and training pictures are judged as the run left them, and after `bn_refresh`.
"""
import torch
import torch.nn.functional as F
from torch.optim import AdamW

from fastcourse import Learner, Recipe, bn_refresh, convnet, fashion_mnist, lr_find
from result import save

SEEDS, EPOCHS = (42, 1, 2, 3, 4), 2


def judged(learner) -> dict:
    return {f"{part}_{name}": round(value, 4) for part in ("train", "valid") for name, value in learner.evaluate(part).items()}


def main():
    torch.set_num_threads(1)
    data, runs = fashion_mnist(), []
    for seed in SEEDS:
        def learner(): return Learner(lambda: convnet(10), data, loss=F.cross_entropy, optimizer=AdamW, seed=seed, device="cpu")
        for name, rate in {"0.01": 0.01, "found": lr_find(learner()).lr}.items():
            one = learner()
            run = one.fit(Recipe(lr=rate), EPOCHS, progress=False)
            plain = judged(one)
            bn_refresh(one)
            runs.append(dict(seed=seed, rate=rate, name=name, running_loss=round(float(run.losses[-10:].mean()), 4), as_it_is=plain, refreshed=judged(one)))
            print(runs[-1], flush=True)
    print(save("refreshed", epochs=EPOCHS, runs=runs))


if __name__ == "__main__": main()
