"""A training in another process that is really killed, and goes on from its checkpoint: shared by the tests and benchmarks/resume.py."""
import hashlib
import multiprocessing
import random
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn, optim

from fastcourse.train.curves import linear, one_cycle
from fastcourse.train.recipe import Recipe
from fastcourse.train.checkpoint import tensors_of
from fastcourse.train.data import from_arrays
from fastcourse.train.learner import Learner


def net(dropout=0.3):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(16, 2))


def data():
    g = torch.Generator().manual_seed(1)
    x = torch.randint(256, (70, 1, 12, 12), dtype=torch.uint8, generator=g)
    return from_arrays(x, torch.arange(70) % 2, valid=(x[:20], torch.arange(20) % 2), test=0, batch_size=16, augment=("flip", "shift", "cutout"))


SCENARIOS = {   # what the learner is made with, the curves beside the rate
    "augmentation, dropout, BatchNorm": (dict(optimizer=optim.AdamW), dict(augment=1.0)),
    "two sizes, accumulation, clipping": (dict(optimizer=optim.AdamW, micro=5, clip=0.5), dict(augment=linear(0, 1), size=lambda p: 8 if p < 0.5 else 12)),
    "EMA, momentum": (dict(optimizer=partial(optim.SGD, momentum=0.9, nesterov=True), ema=0.9), dict(cutout=0.5, momentum=0.8)),
}


def make(name):
    torch.set_num_threads(1)
    options, curves = SCENARIOS[name]
    learner = Learner(net, data(), loss=F.cross_entropy, seed=3, device="cpu", **options)
    return learner, learner.plan(Recipe(lr=one_cycle(0.05), **curves), 3)


def digest(learner) -> str:
    "Of every byte that training changes"
    h = hashlib.sha256()
    state = learner.optimizer.state_dict()["state"]
    tensors = tensors_of(learner) | {f"{i}.{k}": v for i, values in state.items() for k, v in values.items() if isinstance(v, torch.Tensor)}
    for name in sorted(tensors): h.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return h.hexdigest()


def train(name, path, told):
    "Goes on from `path` if it is there, saves after each step and tells the steps done; at the end the digest"
    learner, plan = make(name)
    if resumes := Path(path).exists(): learner.resume(path)
    for batch in learner.batches(plan, resume=resumes):
        learner.step(batch)
        learner.save(path)
        told.send(learner.position.done)
        if batch.step % 5 == 4: learner.evaluate()
    told.send(digest(learner))


def whole(name) -> str:
    "The digest of the same training, never interrupted and never saved"
    learner, plan = make(name)
    for batch in learner.batches(plan): learner.step(batch)
    return digest(learner)


def survive(name, path, kills: list[int]) -> str:
    "The digest of a training that is killed as soon as it has told each of these numbers of steps (rising), and started again"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fastcourse.train.learner", "fastcourse.train.data"])      # torch is imported once, not by each child
    for at in [*kills, None]:
        mine, its = context.Pipe(duplex=False)
        child = context.Process(target=train, args=(name, str(path), its))
        child.start()
        its.close()
        while True:
            said = mine.recv()
            if said == at: break
            if isinstance(said, str): child.join(); return said
        child.kill()
        child.join()
        assert child.exitcode == -9


def draw_kills(seed: int, steps: int, n: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(1, steps), n))
