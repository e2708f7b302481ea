"""The step and the loop against torch's own, and all that a learner must refuse, restore and not touch."""
import json
import math
import os
import random
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from fastcourse.settings import FastcourseError
from fastcourse.train.curves import one_cycle
from fastcourse.train.recipe import Recipe
from fastcourse.train.data import from_arrays
from fastcourse.train.history import Diverged
from fastcourse.train.learner import Learner

torch.set_num_threads(1)


def clouds(n=100, valid=33, batch_size=16):
    "Points around two centres, with a label for each"
    g = torch.Generator().manual_seed(0)
    def make(n):
        y = torch.arange(n) % 2
        return torch.randn(n, 4, generator=g) + 2.0 * y[:, None], y
    return from_arrays(*make(n), valid=make(valid), test=make(9), batch_size=batch_size)


def images(n=70, batch_size=16):
    g = torch.Generator().manual_seed(1)
    x = torch.randint(256, (n, 1, 12, 12), dtype=torch.uint8, generator=g)
    return from_arrays(x, torch.arange(n) % 2, valid=(x[:20], torch.arange(20) % 2), test=(x[:10], torch.arange(10) % 2),
                       batch_size=batch_size, augment=("flip", "shift"))


def plain(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def rich(): return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, 2))


def learner(model=plain, data=None, optimizer=optim.AdamW, **kwargs):
    return Learner(model, data or clouds(), loss=kwargs.pop("loss", F.cross_entropy), optimizer=optimizer, **dict(seed=3, device="cpu") | kwargs)


def weights(x): return torch.cat([t.detach().reshape(-1).double() for t in (*x.model.parameters(), *x.model.buffers())])


def fit(x, epochs=2, **kwargs): return x.fit(Recipe(lr=one_cycle(0.01), **kwargs), epochs, progress=False)


# ---- the step against torch


@pytest.mark.parametrize("optimizer", [optim.AdamW, partial(optim.SGD, momentum=0.9, weight_decay=1e-3), optim.RMSprop])
def test_fit_equals_the_loop_by_hand_bit_for_bit(optimizer):
    mine, oracle = learner(optimizer=optimizer), learner(optimizer=optimizer)
    hand = optimizer(oracle.model.parameters())
    recipe = Recipe(lr=one_cycle(0.05))
    for batch in oracle.batches(oracle.plan(recipe, 3)):
        for group in hand.param_groups: group["lr"] = batch.row.lr
        hand.zero_grad()
        F.cross_entropy(oracle.model(batch.x), batch.y).backward()
        hand.step()
    mine.fit(recipe, 3, progress=False)
    assert torch.equal(weights(mine), weights(oracle))


@pytest.mark.parametrize("n, micro", [(100, 5), (97, 4), (33, 16)])
def test_micro_batches_add_up_to_the_whole_batch(n, micro):
    whole, parts = learner(data=clouds(n)), learner(data=clouds(n), micro=micro)
    a, b = fit(whole, 1), fit(parts, 1)
    assert np.allclose(a.losses, b.losses, rtol=1e-5) and torch.allclose(weights(whole), weights(parts), atol=1e-5)


def test_every_sample_comes_once_an_epoch_and_in_another_order_the_next():
    x = learner(data=clouds(50))
    epochs = {0: [], 1: []}
    for batch in x.batches(x.plan(Recipe(lr=0.1), 2)): epochs[batch.epoch] += batch.index.tolist()
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50)) and epochs[0] != epochs[1]


def test_a_second_fit_has_another_order_and_the_same_seed_the_same():
    x, again = learner(), learner()
    orders = []
    for _ in range(2):
        plan = x.plan(Recipe(lr=0.01), 1)
        orders.append([i for batch in x.batches(plan) for i in batch.index.tolist()])
        for batch in x.batches(plan): x.step(batch)
    assert orders[0] != orders[1]
    fit(again, 1)
    assert not torch.equal(weights(x), weights(again))


def test_a_loss_a_sample_is_averaged():
    a, b = learner(), learner(loss=partial(F.cross_entropy, reduction="none"))
    assert np.allclose(fit(a).losses, fit(b).losses, rtol=1e-6)
    assert math.isclose(a.evaluate()["loss"], b.evaluate()["loss"], rel_tol=1e-6)


# ---- the seed


def test_the_seed_covers_weights_order_and_dropout():
    a, b, c = learner(rich, images()), learner(rich, images()), learner(rich, images(), seed=4)
    for x in a, b, c: fit(x, augment=1.0, size=10)
    assert torch.equal(weights(a), weights(b)) and not torch.equal(weights(a), weights(c))


def test_training_leaves_the_users_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    x = learner(rich, images())
    fit(x)
    x.evaluate()
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1] and random.getstate() == before[2]


def test_evaluating_in_mid_epoch_changes_nothing():
    a, b = learner(rich, images()), learner(rich, images())
    for x in a, b:
        for batch in x.batches(x.plan(Recipe(lr=0.01, augment=0.5), 2)):
            x.step(batch)
            if x is b: x.evaluate(); x.predict("train")
    assert torch.equal(weights(a), weights(b))


def test_modes_are_handed_back_and_frozen_layers_stay_frozen():
    x = learner(rich, images())
    x.model[1].eval()
    stats = x.model[1].running_mean.clone()
    fit(x)
    assert torch.equal(x.model[1].running_mean, stats)
    assert not x.model[1].training and x.model[5].training


# ---- evaluation


@pytest.mark.parametrize("n", [1, 15, 16, 17, 33])
def test_evaluation_is_exact_for_every_size(n):
    x = learner(data=clouds(valid=n))
    fit(x)
    with torch.no_grad(): scores = x.model(x.split("valid").take(torch.arange(n))[0])
    said = x.evaluate(metrics=[lambda scores, y: len(y)])
    assert math.isclose(said["loss"], F.cross_entropy(scores, x.data.valid.y).item(), rel_tol=1e-5)
    assert said["accuracy"] == (scores.argmax(1) == x.data.valid.y).double().mean().item() and said["<lambda>"] == n
    assert x.predict().index.tolist() == list(range(n))


def test_a_split_that_is_not_there():
    with pytest.raises(FastcourseError, match="train, valid, test"): learner().evaluate("validation")


# ---- misuse


def test_batches_out_of_turn_are_refused():
    x = learner()
    plan = x.plan(Recipe(lr=0.01), 1)
    batches = list(x.batches(plan))
    x.step(batches[0])
    before = weights(x)
    for wrong, words in (batches[0], "already"), (batches[2], "1 before it"):
        with pytest.raises(FastcourseError, match=words): x.step(wrong)
    other = list(x.batches(x.plan(Recipe(lr=0.02), 1)))
    x.step(other[0])
    with pytest.raises(FastcourseError, match="already"): x.step(batches[1])
    x.step(other[1])
    assert not torch.equal(weights(x), before)


def test_a_batch_of_another_plan_is_refused():
    x = learner()
    a, b = (list(x.batches(x.plan(Recipe(lr=lr), 1))) for lr in (0.01, 0.02))
    x.step(a[0])
    with pytest.raises(FastcourseError, match="another plan"): x.step(b[1])


def test_looking_ahead_at_another_plan_changes_nothing():
    a, b = learner(rich, images()), learner(rich, images())
    for x in a, b:
        for batch in x.batches(x.plan(Recipe(lr=0.01), 1)):
            if x is b: next(x.batches(x.plan(Recipe(lr=0.5), 3)))
            x.step(batch)
    assert torch.equal(weights(a), weights(b))


@pytest.mark.parametrize("after", [1, 5, 10])
def test_a_loop_that_was_left_goes_on_where_it_stopped(after):
    a, b = learner(rich, images()), learner(rich, images())
    recipe = Recipe(lr=one_cycle(0.05), augment=1.0)
    fitted = a.fit(recipe, 3, progress=False)
    plan, losses = b.plan(recipe, 3), []
    for batch in b.batches(plan):
        losses.append(b.step(batch).item())
        if batch.step + 1 == after: break
    with pytest.raises(FastcourseError, match="not within this plan"): b.batches(b.plan(recipe, 2), resume=True)
    losses += [b.step(batch).item() for batch in b.batches(plan, resume=True)]
    assert torch.equal(weights(a), weights(b)) and losses == fitted.losses.tolist()
    assert list(b.batches(plan, resume=True)) == []


def test_an_error_within_a_step_marks_the_learner():
    fail = []
    def loss(outputs, targets):
        if fail: raise RuntimeError("a cable came loose")
        return F.cross_entropy(outputs, targets)
    x = learner(loss=loss)
    kept, before = x.snapshot(), weights(x)
    batches = list(x.batches(x.plan(Recipe(lr=0.1), 1)))
    x.step(batches[0])
    fail.append(True)
    with pytest.raises(RuntimeError): x.step(batches[1])
    fail.clear()
    with pytest.raises(FastcourseError, match="did not finish"): x.step(batches[1])
    x.restore(kept)
    assert torch.equal(weights(x), before)
    for batch in batches: x.step(batch)


def test_a_plan_for_other_data_is_refused():
    x, other = learner(), learner(data=clouds(64))
    with pytest.raises(FastcourseError, match="made for 64 samples"): list(x.batches(other.plan(Recipe(lr=0.1), 1)))


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_rate():
    x = learner(optimizer=optim.SGD, loss=lambda o, y: ((o - 1e3) ** 2).mean())
    with pytest.raises(Diverged, match=r"became (inf|nan) at step \d+, with a learning rate of 100") as e: x.fit(Recipe(lr=100), 2, progress=False)
    losses = e.value.history.losses
    assert np.isfinite(losses[: e.value.step]).all() and not np.isfinite(losses[e.value.step])
    y = learner(optimizer=optim.SGD, loss=lambda o, y: ((o - 1e3) ** 2).mean())
    assert len(y.fit(Recipe(lr=100), 2, progress=False, stop_at_nan=False).losses) == 14


@pytest.mark.parametrize("make, words", [
    (lambda: learner(model=3), "int is no model"),
    (lambda: learner(model=lambda: nn.LazyLinear(2)), "lazy"),
    (lambda: learner(model=plain(), optimizer=optim.SGD(plain().parameters(), lr=0.1)), "another model"),
    (lambda: learner(optimizer=optim.LBFGS), "LBFGS evaluates the loss several times"),
    (lambda: learner(device="abacus"), "no device 'abacus'"),
    (lambda: learner(model=nn.ReLU()), "No parameter"),
    (lambda: learner(seed=-1), "seed = -1 will not do"),
    (lambda: learner(seed=0.5), "seed = 0.5 will not do"),
    (lambda: learner(optimizer=optim.Adagrad).plan(Recipe(lr=0.1, momentum=0.9), 1), "Adagrad has no momentum"),
    (lambda: fit(learner(loss=lambda o, y: 0.5)), "gave float"),
    (lambda: fit(learner(), size=8), "neither images nor series"),
])
def test_wrong_input_is_named(make, words):
    with pytest.raises(FastcourseError, match=words): make()


# ---- values


def test_groups_keep_their_ratio_and_the_optimizer_its_own_values():
    model = plain()
    adam = optim.AdamW([dict(params=model[0].parameters(), lr=1e-4, weight_decay=0.0), dict(params=model[2].parameters(), lr=1e-3)], betas=(0.8, 0.99))
    x, seen = learner(model=model, optimizer=adam), []
    adam.register_step_pre_hook(lambda opt, *a: seen.append([(g["lr"], g["betas"], g["weight_decay"]) for g in opt.param_groups]))
    x.fit(Recipe(lr=0.5, momentum=0.9, weight_decay=0.1), 0.1, progress=False)
    (a, betas, decay), (b, _, other) = seen[0]
    assert math.isclose(a, 0.05) and b == 0.5 and betas == (0.9, 0.99) and (decay, other) == (0.0, 0.1)
    assert [(g["lr"], g["betas"], g["weight_decay"]) for g in adam.param_groups] == [(1e-4, (0.8, 0.99), 0.0), (1e-3, (0.8, 0.99), 0.01)]


# ---- rehearsal


OPTIMIZERS = [optim.AdamW, optim.SGD, partial(optim.SGD, momentum=0.9), optim.RMSprop, optim.Adagrad, optim.NAdam, optim.RAdam, optim.Adadelta, optim.Adamax]


def state_of(x):
    "All tensors and numbers of a learner, to be compared bit for bit"
    tensors = [*x.model.parameters(), *x.model.buffers()]
    entries = [(i, k, v.clone() if torch.is_tensor(v) else v) for i, p in enumerate(x.model.parameters()) for k, v in sorted(x.optimizer.state.get(p, {}).items())]
    grads = [None if p.grad is None else p.grad.clone() for p in x.model.parameters()]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in x.optimizer.param_groups]
    return [t.detach().clone() for t in tensors], entries, grads, groups, vars(x.position).copy(), [m.training for m in x.model.modules()], torch.get_rng_state()


def same(a, b):
    if torch.is_tensor(a): return torch.equal(a, b)
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("trained", [False, True])
def test_a_rehearsal_leaves_every_bit(optimizer, trained):
    x = learner(rich, images(), optimizer)
    if trained: fit(x, 1)
    before, objects = state_of(x), [id(p) for p in x.model.parameters()]
    for error in (None, ZeroDivisionError, KeyboardInterrupt):
        try:
            with x.rehearsal():
                x.fit(Recipe(lr=0.5, augment=1.0), 1, progress=False)
                with x.rehearsal(): fit(x, 1)
                x.model.eval(); x.model.note = "left behind"; x.model[1].requires_grad_(False)
                torch.rand(3); np.random.rand(); x.model[0].weight.data = x.model[0].weight.data + 1
                if error: raise error
        except (ZeroDivisionError, KeyboardInterrupt): pass
        assert same(state_of(x), before) and [id(p) for p in x.model.parameters()] == objects and not hasattr(x.model, "note")
        assert all(p.requires_grad for p in x.model.parameters())


def test_a_fit_after_a_rehearsal_is_the_fit_without():
    a, b = learner(rich, images()), learner(rich, images())
    with b.rehearsal(): fit(b)
    fit(a), fit(b)
    assert torch.equal(weights(a), weights(b))


# ---- many processes


TEAM = """
import json, sys
sys.path.insert(0, {tests!r})
from test_learner import *
x = learner(rich, images(70, 32), micro=8)
history = x.fit(Recipe(lr=one_cycle(0.05), augment=1.0), 2, progress=False)
valid = x.evaluate()["loss"]
if x.team.rank == 0: print("RESULT", json.dumps(dict(losses=history.losses.tolist(), world=x.team.world)))
"""


@pytest.mark.slow
def test_two_processes_take_the_same_steps_as_one(tmp_path):
    "For a fixed micro-batch the losses agree, with dropout, BatchNorm, augmentation and a short last window (70 = 32 + 32 + 6)"
    script = tmp_path / "team.py"
    script.write_text(TEAM.format(tests=os.path.dirname(__file__)))
    env = os.environ | dict(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
                         capture_output=True, text=True, env=env, timeout=240)
    assert "RESULT" in run.stdout, run.stderr[-2000:]
    two = json.loads(run.stdout.split("RESULT")[1].strip().splitlines()[0])
    one = learner(rich, images(70, 32), micro=8)
    history = one.fit(Recipe(lr=one_cycle(0.05), augment=1.0), 2, progress=False)
    assert two["world"] == 2 and np.allclose(two["losses"], history.losses, rtol=1e-4)
