"""Augmentation and size on the device: shares and areas against the arithmetic, strengths against their curves, series like images."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from fastcourse.settings import FastcourseError
from fastcourse.train.batches import Batches
from fastcourse.train.curves import linear
from fastcourse.train.recipe import Recipe
from fastcourse.train.data import chest_xray, from_arrays
from fastcourse.train.learner import Learner
from fastcourse.train.plan import Plan
from test_learner import images, learner, plain, rich

N = 4000
ASYMMETRIC = torch.arange(N * 16.0).reshape(N, 1, 4, 4)


def held(x): return Batches(SimpleNamespace(x=x, y=torch.zeros(len(x))))


def everything(batches, epoch=0, **strengths): return batches.take(torch.arange(len(batches)), seed=5, epoch=epoch, strengths=strengths)[0]


@pytest.mark.parametrize("strength", [1.0, 0.5, 0.1])
def test_half_the_strength_is_the_share_that_is_flipped(strength):
    "Of 4,000 samples s/2 are flipped, give or take four standard deviations"
    x = everything(held(ASYMMETRIC), flip=strength)
    flipped = (x == ASYMMETRIC.flip(-1)).flatten(1).all(1)
    assert (flipped | (x == ASYMMETRIC).flatten(1).all(1)).all()
    p = strength / 2
    assert abs(flipped.double().mean().item() - p) < 4 * (p * (1 - p) / N) ** 0.5


def test_a_shift_is_evenly_spread_over_its_reach():
    "16 pixels at strength 1: up to 2 either way; by rounding the steps -2 to 2 have the shares 1/8, 1/4, 1/4, 1/4, 1/8"
    ramp = torch.arange(16.0).expand(N, 1, 16, 16)
    middle = everything(held(ramp.clone()), shift=1.0)[:, 0, 8, 8]
    shares = [((middle == 8 - step).double().mean().item()) for step in range(-2, 3)]
    assert np.allclose(shares, [1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8], atol=4 * (0.25 * 0.75 / N) ** 0.5) and sum(shares) == 1


@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_the_area_of_the_hole(strength):
    "A side of s/2 whose centre is anywhere loses s/4 of itself over the edges on average (s/8 at each): (s/2 - s*s/16) of each axis"
    ones = torch.ones(N, 1, 64, 64)
    gone = 1 - everything(held(ones), cutout=strength).mean().item()
    assert abs(gone - (strength / 2 - strength**2 / 16) ** 2) < 0.01


def test_a_hole_holds_the_training_mean_of_every_channel():
    x = torch.rand(50, 3, 8, 8)
    batches = Batches(SimpleNamespace(x=x, y=torch.zeros(50)), mean=[0.1, 0.5, 0.9], std=[1, 2, 3])
    holed, whole = everything(batches, cutout=1.0), everything(batches, cutout=0.0)
    gone = (holed != whole).all(1, keepdim=True)
    assert gone.any((1, 2, 3)).all() and torch.equal(holed, whole.masked_fill(gone, 0.0))


def test_kinds_draw_numbers_of_their_own():
    "Flipped or not says nothing about the shift or the hole: correlations below four standard errors"
    draws = held(ASYMMETRIC)._draws(5, 0).numpy()
    apart = np.corrcoef(draws.T) - np.eye(5)
    assert draws.shape == (N, 5) and np.abs(apart).max() < 4 / N**0.5


def test_each_strength_follows_its_own_curve():
    x = learner(rich, images())
    plan = x.plan(Recipe(lr=0.1, flip=linear(0, 1), cutout=0.5), 2)
    assert (plan.rows[0].flip, plan.rows[-1].flip) == (0, 1) and {row.cutout for row in plan.rows} == {0.5}
    for batch in x.batches(plan):
        again, _ = x.split("train").take(batch.index, seed=x_fit(x), epoch=batch.epoch, strengths=dict(flip=batch.row.flip, cutout=0.5))
        assert torch.equal(batch.x, again)
    assert plan.fingerprint != x.plan(Recipe(lr=0.1, flip=linear(0, 1), cutout=0.4), 2).fingerprint


def x_fit(learner):
    from fastcourse.train.core import key
    return key(learner.seed, "fit", 0)


def test_augment_speaks_for_what_the_data_name_and_a_value_of_its_own_goes_before():
    chest = chest_xray(size=16)
    assert chest.augment == ("shift",)
    row = Plan(Recipe(lr=0.1, augment=0.5), 1, 64, 64).rows[0]
    assert row.strengths(chest.augment) == dict(shift=0.5)
    assert Plan(Recipe(lr=0.1, augment=0.5, shift=0, flip=1), 1, 64, 64).rows[0].strengths(chest.augment) == dict(flip=1.0)


def test_a_series_is_shifted_in_time_and_resized_like_a_row_of_pixels():
    ramp = torch.arange(32.0).expand(N, 2, 32).clone()
    moved = everything(held(ramp), shift=1.0)
    steps = (ramp - moved)[:, :, 16]
    assert torch.equal(steps[:, 0], steps[:, 1]) and set(steps.unique().tolist()) == set(range(-4, 5))     # an eighth of 32, both channels alike
    wide, _ = held(ramp[:2]).take(torch.arange(2), size=8)
    oracle = F.interpolate(ramp[:2, :, None], size=(1, 8), mode="bilinear", antialias=True)[:, :, 0]
    assert torch.allclose(wide, oracle) and wide.shape == (2, 2, 8)
    assert torch.equal(everything(held(ramp), cutout=1.0)[:, 0] == 0, everything(held(ramp), cutout=1.0)[:, 1] == 0)


def test_a_learner_on_series():
    "A rising and a falling ramp under noise are told apart; sizes change the length on the way"
    g = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    x = torch.randn(200, 2, 24, generator=g) + (2.0 * y - 1)[:, None, None] * torch.linspace(-2, 2, 24)
    data = from_arrays(x, y, series=True, augment=("shift", "cutout"), batch_size=20)
    assert data.train.kind == "float32 [2, 24]" and data.mean.shape == (2,)
    def lazy(): return nn.Sequential(nn.Conv1d(2, 8, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    def tied(): return nn.Sequential(nn.Conv1d(2, 8, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(32, 2))
    x = Learner(tied, data, loss=F.cross_entropy, optimizer=optim.AdamW, seed=1, device="cpu")
    lengths = {batch.x.shape[2] for batch in x.batches(x.plan(Recipe(lr=0.1, size=linear(12, 24)), 1))}
    assert min(lengths) == 12 and max(lengths) > 20
    x.fit(Recipe(lr=0.02, augment=0.5, size=linear(12, 24)), 4, progress=False)
    assert x.evaluate()["accuracy"] > 0.9
    with pytest.raises(FastcourseError, match="lazy parameters"): Learner(lazy, data, loss=F.cross_entropy, optimizer=optim.AdamW)


@pytest.mark.parametrize("make, words", [
    (lambda: learner(plain).plan(Recipe(lr=0.1, augment=0.5), 1), "name no augmentation"),
    (lambda: learner(plain).fit(Recipe(lr=0.1, shift=0.5), 1, progress=False), "neither images nor series"),
    (lambda: from_arrays(torch.zeros(20, 2, 8), torch.arange(20) % 2, series=True, augment="flip"), "backwards"),
    (lambda: from_arrays(torch.zeros(20, 8), torch.arange(20) % 2, series=True), "no series"),
    (lambda: Plan(Recipe(lr=0.1, cutout=1.5), 1, 10, 5), "curve for cutout gives 1.5"),
    (lambda: Recipe(lr=0.1, flip="often"), "flip = 'often' is no curve"),
])
def test_what_cannot_be_augmented_is_said(make, words):
    with pytest.raises(FastcourseError, match=words): make()
