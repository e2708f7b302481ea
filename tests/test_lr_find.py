"""Contract 3: where the finder stops, what it suggests, what it says when there is nothing to suggest; and the LF lines of what users reported."""
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from fastcourse.settings import FastcourseError
from fastcourse.train.curves import exponential
from fastcourse.train.recipe import Recipe
from fastcourse.train.data import from_arrays
from fastcourse.train.learner import Learner
from fastcourse.train.lr_find import centred, lr_find, suggest, sweep_plan
from test_learner import clouds, images, learner, rich, same, state_of, weights

RATES = np.geomspace(1e-6, 10, 113)


def curve(bottom=-1.5, depth=1.0, level=2.0, noise=0.0, seed=0):
    "A loss that falls by `depth` along two decades up to 10**bottom and climbs a decade later, with noise"
    at = np.interp(np.log10(RATES), [-6, bottom - 2, bottom, bottom + 1, 3], [0, 0, -depth, -depth, 40])
    return level + at + noise * np.random.default_rng(seed).standard_normal(len(RATES))


# ---- the suggestion


@given(st.floats(-3, -0.8), st.floats(0.1, 5), st.floats(-10, 10))
def test_the_suggestion_lies_between_fall_and_climb_whatever_the_level(bottom, depth, level):
    found = suggest(RATES, curve(bottom, depth, level))
    assert found.low <= found.lr <= found.high and 10 ** (bottom - 1) < found.lr < 10 ** (bottom + 1)


@given(st.floats(0.01, 100), st.floats(-50, 50))
def test_units_of_the_loss_do_not_matter(scale, shift):
    a, b = suggest(RATES, curve()), suggest(RATES, scale * curve() + shift)
    assert math.isclose(a.lr, b.lr, rel_tol=1e-6) and math.isclose(a.high, b.high, rel_tol=1e-6)


@given(st.integers(0, 10**6))
def test_noise_moves_the_suggestion_by_less_than_a_factor_of_three(seed):
    assert 1 / 3 < suggest(RATES, curve(noise=0.02, seed=seed)).lr / suggest(RATES, curve()).lr < 3


@pytest.mark.parametrize("losses", [2 + 0 * RATES, np.linspace(2, 9, 113), 2 + 0.05 * np.random.default_rng(1).standard_normal(113)])
def test_a_curve_that_never_descends_gets_no_suggestion(losses): assert suggest(RATES, losses) is None


@pytest.mark.parametrize("n", [0, 1, 15])
def test_too_few_points_are_named(n):
    with pytest.raises(FastcourseError, match=f"{n} points are too few .* 16 are needed"): suggest(RATES[:n], curve()[:n])


def test_smoothing_has_no_lag():
    v = np.abs(np.log10(RATES) + 2.5)
    assert abs(np.log10(RATES[np.argmin(centred(RATES, v))]) + 2.5) < 1 / 16


# ---- the sweep


def test_the_sweep_hits_both_ends_by_equal_ratios_and_one_point_a_step():
    rows = sweep_plan(learner(), exponential(1e-5, 1), 36).rows
    lrs = np.array([row.lr for row in rows])
    assert lrs[0] == 1e-5 and lrs[-1] == 1 and len(lrs) == 5 * 7 + 1 and np.allclose(lrs[1:] / lrs[:-1], 10 ** (1 / 7))
    assert {row.n for row in rows} == {16}


@pytest.mark.parametrize("optimizer", [optim.AdamW, optim.SGD])
def test_the_sweep_leaves_every_bit_and_the_training_after_it(optimizer):
    a, b = learner(rich, images(), optimizer), learner(rich, images(), optimizer)
    before = state_of(a)
    lr_find(a)
    assert same(state_of(a), before)
    for x in a, b: x.fit(Recipe(lr=0.01), 1, progress=False)
    assert torch.equal(weights(a), weights(b))


def test_it_works_again_and_on_a_learner_that_was_fitted():
    x = learner()
    first, second = lr_find(x), lr_find(x)
    assert first.losses.tolist() == second.losses.tolist()
    x.fit(Recipe(lr=0.01), 1, progress=False)
    assert lr_find(x).losses[0] < first.losses[0]


def test_the_curve_depends_on_the_state_and_not_on_the_way_there():
    "A fresh learner with the weights of a trained one (plain SGD keeps nothing else) has its curve, bit for bit"
    trained, fresh = learner(optimizer=optim.SGD), learner(optimizer=optim.SGD)
    trained.fit(Recipe(lr=0.01), 1.3, progress=False)
    fresh.model.load_state_dict(trained.model.state_dict())
    a, b = lr_find(trained), lr_find(fresh)
    assert np.array_equal(a.losses, b.losses) and trained.position.done > fresh.position.done == 0


def test_a_sweep_that_ends_too_early_says_so():
    found = lr_find(learner(), end=0.02)
    assert found.high == found.lrs[-1] and "raise `end`" in found.note
    assert "raise `end`" not in lr_find(learner()).note


def test_the_mean_of_several_sweeps():
    "Their noise is less by about the square root of their number; all end with the shortest; and the learner is as it was"
    x = learner(data=clouds(400, batch_size=8))
    before = state_of(x)
    one, nine = lr_find(x), lr_find(x, sweeps=9)
    assert same(state_of(x), before) and len(nine.losses) <= len(one.losses)
    assert 1 / 6 < np.std(nine.losses[:30]) / np.std(one.losses[:30]) < 1 / 2


def test_micro_batches_make_no_extra_points():
    whole, split, taken = lr_find(learner()), learner(micro=4), []
    split.optimizer.register_step_post_hook(lambda *a: taken.append(1))
    parts = lr_find(split)
    assert len(parts.losses) == len(parts.lrs) == len(taken)             # sixteen samples, four micro-batches, one point
    n = min(len(whole.losses), len(parts.losses)) // 2
    assert np.allclose(whole.losses[:n], parts.losses[:n], rtol=1e-4)


def test_it_stops_at_the_first_loss_that_is_no_number_and_uses_what_came_before():
    calls = []
    def loss(outputs, y):
        calls.append(1)
        return F.cross_entropy(outputs, y) * (math.inf if len(calls) == 60 else 1)
    found = lr_find(learner(loss=loss))
    assert len(found.losses) == 59 and np.isfinite(found.losses).all() and "inf" in found.stop_reason and len(calls) == 60


def test_a_loss_that_breaks_at_once_says_so():
    with pytest.raises(FastcourseError, match="0 points are too few.*the loss became nan"): lr_find(learner(loss=lambda o, y: o.sum() * math.nan))


def test_negative_losses():
    "The same loss moved down by 10: the same points, the same suggestion"
    a, b = lr_find(learner()), lr_find(learner(loss=lambda o, y: F.cross_entropy(o, y) - 10))
    assert np.median(b.losses) < 0 and math.isclose(a.lr, b.lr, rel_tol=1e-3)


def test_labels_without_meaning_are_found_out():
    g = torch.Generator().manual_seed(2)
    data = from_arrays(torch.randn(512, 4, generator=g), torch.randint(2, (512,), generator=g), batch_size=32)
    found = lr_find(Learner(lambda: nn.Linear(4, 2), data, loss=F.cross_entropy, optimizer=optim.SGD, seed=1, device="cpu"))
    assert found.suggestion is None and "never descends" in found.note
    with pytest.raises(FastcourseError, match="never descends"): found.lr
    assert "no suggestion" in repr(found.plot())


def test_groups_keep_their_ratio_in_the_sweep():
    model, seen = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), []
    sgd = optim.SGD([dict(params=model[0].parameters(), lr=0.01), dict(params=model[2].parameters(), lr=0.1)])
    sgd.register_step_pre_hook(lambda opt, *a: seen.append([g["lr"] for g in opt.param_groups]))
    lr_find(learner(model=model, optimizer=sgd))
    assert all(math.isclose(a, b / 10) for a, b in seen)


def test_an_error_in_the_sweep_passes_through_and_restores():
    calls = []
    def loss(outputs, y):
        calls.append(1)
        if len(calls) == 40: raise ZeroDivisionError
        return F.cross_entropy(outputs, y)
    x = learner(loss=loss)
    before = state_of(x)
    with pytest.raises(ZeroDivisionError): lr_find(x)
    assert same(state_of(x), before)


def test_data_shorter_than_the_sweep_goes_round():
    found = lr_find(learner(data=clouds(20, batch_size=16)))
    assert len(found.lrs) > 16


@pytest.mark.parametrize("wrong", [dict(start=0), dict(start=1, end=1), dict(end=math.inf), dict(start=-1), dict(per_decade=0), dict(sweeps=0), dict(sweeps=1.5)])
def test_a_sweep_refuses(wrong):
    with pytest.raises(FastcourseError): lr_find(learner(), **wrong)


@pytest.mark.slow
def test_twenty_seeds_agree_within_a_factor_of_three():
    lrs = [lr_find(learner(data=clouds(400, batch_size=32), seed=seed)).lr for seed in range(20)]
    middle = float(np.median(lrs))
    assert all(1 / 3 < lr / middle < 3 for lr in lrs), np.round(lrs, 4)
