"""Contract 1: curves are total, hit their ends and their peak exactly, and never bounce."""
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcourse.settings import FastcourseError
from fastcourse.train.curves import constant, cosine, exponential, join, linear, one_cycle, polynomial, straight, through, warmup_stable_decay
from fastcourse.train.recipe import Recipe, values_on
from fastcourse.train.plan import Plan, cut

steps = st.integers(1, 5000)
shares = st.floats(0, 1)
peaks = st.floats(1e-8, 1e3)


@given(peaks, steps, shares)
def test_one_cycle_is_total(peak, T, warmup):
    values = one_cycle(peak, warmup=warmup).over(T)
    assert len(values) == T and max(values) == peak and min(values) >= 0
    top = values.index(peak)
    assert values[: top + 1] == sorted(values[: top + 1]) and values[top:] == sorted(values[top:], reverse=True)


@given(peaks, st.integers(3, 5000), st.floats(0.001, 0.999))
def test_three_steps_or_more_meet_start_peak_and_end(peak, T, warmup):
    values = one_cycle(peak, warmup=warmup).over(T)
    assert values[0] == peak * (1 / 25)
    assert values[-1] == peak * 1e-4
    nearest = min(max(round(warmup * (T - 1)), 1), T - 2)
    assert abs(values.index(peak) - nearest) <= (0 if abs(warmup * (T - 1) % 1 - 0.5) > 1e-6 else 1)


@given(peaks)
def test_the_shortest_runs(peak):
    assert one_cycle(peak).over(1) == [peak] and one_cycle(peak).over(2) == [peak, peak * 1e-4]


@given(peaks, st.integers(2, 500))
def test_without_and_with_nothing_but_warmup(peak, T):
    assert one_cycle(peak, warmup=0).over(T)[0] == peak
    assert one_cycle(peak, warmup=1).over(T)[-1] == peak


@given(peaks, st.floats(-10, 10))
def test_past_the_ends_a_curve_stands_still(peak, p):
    curve = one_cycle(peak)
    assert curve(p) == curve(min(max(p, 0), 1))


@given(peaks, steps, shares, shares)
def test_warmup_stable_decay_is_total_and_falls_as_one_minus_the_root(peak, T, warmup, rest):
    "However the shares are cut: up, level, down; and the decay against its formula written again"
    decay = (1 - warmup) * rest
    curve = warmup_stable_decay(peak, warmup=warmup, decay=decay)
    values = curve.over(T)
    assert len(values) == T and max(values) == peak and min(values) >= 0
    first, last = values.index(peak), T - 1 - values[::-1].index(peak)
    assert values[: first + 1] == sorted(values[: first + 1]) and set(values[first : last + 1]) == {peak} and values[last:] == sorted(values[last:], reverse=True)
    for s in 0.25, 0.81:
        p = 1 - decay * (1 - s)
        if decay > 1e-6: assert math.isclose(curve(p), peak * (1 - (1 - 1e-4) * s**0.5), rel_tol=1e-6)


@given(peaks, st.floats(0, 1), st.integers(2, 400))
def test_a_cool_down_starts_where_the_recipe_was_left_and_ends_at_zero(peak, p, T):
    recipe = Recipe(lr=one_cycle(peak), momentum=linear(0.8, 0.9), size=linear(10, 20), cutout=lambda p: p / 2)
    down = recipe.cool_down(p)
    values = down.lr.over(T)
    assert values[0] == recipe.lr(p) and values[-1] == 0 and values == sorted(values, reverse=True)
    assert down.momentum(0.7) == recipe.momentum(p) and down.size(0.1) == 20 and down.cutout(1) == p / 2 and down.flip is None


@given(st.floats(1e-8, 1), st.floats(1.001, 1e6), st.integers(2, 300))
def test_exponential_rises_by_equal_ratios(start, factor, T):
    values = exponential(start, start * factor).over(T)
    assert values[0] == start and values[-1] == start * factor
    assert all(math.isclose(b / a, factor ** (1 / (T - 1)), rel_tol=1e-9) for a, b in zip(values, values[1:]))


@pytest.mark.parametrize("T", [5, 40, 117])
def test_against_torch_where_torch_is_right(T):
    """OneCycleLR with its knots on whole steps. Known deviations elsewhere: torch puts the peak at warmup*T - 1, not on the
    nearest step; divides by zero where that is 0; goes on past its end; and counts its final rate from the *start*."""
    warmup = 1 / (T - 1) * ((T - 1) // 4)
    p = torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([p], lr=1)
    up = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.5, total_steps=T, pct_start=((T - 1) // 4 + 1) / T, div_factor=25, final_div_factor=400, cycle_momentum=False)
    oracle = []
    for _ in range(T):
        oracle.append(sgd.param_groups[0]["lr"])
        sgd.step()
        if len(oracle) < T: up.step()
    mine = one_cycle(0.5, warmup=warmup, end=1 / 25 / 400).over(T)
    assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(mine, oracle))


def test_a_plateau_keeps_the_largest_value_in_a_short_run():
    curve = through(straight, (0, 1.0), (0.8, 1.0), (1, 0.0))
    assert curve.over(2) == [1.0, 0.0] and curve.over(1) == [1.0]


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=5), st.integers(1, 400))
def test_joined_curves_are_total_and_stay_between_their_values(parts, T):
    whole = sum(n for n, _, _ in parts)
    curve = join(*((n / whole, linear(a, b)) for n, a, b in parts))
    values, ends = curve.over(T), [v for _, a, b in parts for v in (a, b)]
    assert len(values) == T and min(ends) <= min(values) and max(values) <= max(ends)
    if T >= 2 * len(parts): assert values[0] == parts[0][1] and values[-1] == parts[-1][2] and max(values) == max(ends)


@pytest.mark.parametrize("T", [2, 7, 100])
@pytest.mark.parametrize("mine, make", [
    (lambda T: linear(1, 0.1), lambda opt, T: torch.optim.lr_scheduler.LinearLR(opt, 1, 0.1, T - 1)),
    (lambda T: cosine(1, 0.1), lambda opt, T: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T - 1, 0.1)),
    (lambda T: polynomial(1, 0, 3), lambda opt, T: torch.optim.lr_scheduler.PolynomialLR(opt, T - 1, 3)),
    (lambda T: exponential(1, 0.5 ** (T - 1)), lambda opt, T: torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)),
])
def test_against_torchs_closed_schedulers(mine, make, T):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    scheduler, oracle = make(sgd, T), []
    for _ in range(T):
        oracle.append(sgd.param_groups[0]["lr"])
        sgd.step(), scheduler.step()
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(mine(T).over(T), oracle))


def test_a_step_schedule_is_constants_joined():
    values = join((0.5, constant(1.0)), (0.3, constant(0.1)), (0.2, constant(0.01))).over(101)
    assert values == [1.0] * 51 + [0.1] * 30 + [0.01] * 20


@pytest.mark.parametrize("make", [lambda: join(), lambda: join((0.5, constant(1))), lambda: join((0.7, constant(1)), (0.7, constant(1))), lambda: join((1.5, constant(1)), (-0.5, constant(1))),
                                  lambda: polynomial(1, 0, 0), lambda: linear(-1, 0), lambda: one_cycle(0), lambda: one_cycle(-1), lambda: one_cycle(math.nan), lambda: one_cycle(0.1, warmup=1.5),
                                  lambda: one_cycle(0.1, end=-1), lambda: exponential(0, 1), lambda: exponential(1e-6, math.inf),
                                  lambda: constant(-1), lambda: Recipe(lr="0.1"), lambda: Recipe(lr=0.1, momentum=[0.9]), lambda: one_cycle("0.1"),
                                  lambda: one_cycle(0.1).over(0), lambda: one_cycle(0.1).over(2.5)])
def test_wrong_values_are_refused(make):
    with pytest.raises(FastcourseError): make()


@pytest.mark.parametrize("name, curve", [("lr", lambda p: -p), ("lr", lambda p: math.nan), ("lr", lambda p: math.inf), ("momentum", lambda p: 1.0), ("augment", lambda p: 2.0)])
def test_a_curve_that_leaves_its_range_is_named(name, curve):
    with pytest.raises(FastcourseError, match=name): values_on(curve, [0, 0.5, 1], name)


@given(st.integers(1, 2000), st.integers(1, 300))
def test_cutting_leaves_no_single_sample(n, part):
    sizes = cut(n, part)
    assert sum(sizes) == n and all(size in (part, part + 1) for size in sizes[:-1])
    assert sizes[-1] > 1 or part == 1 or n == 1


@given(st.integers(1, 300), st.integers(1, 64), st.floats(0.1, 4))
def test_a_plan_sees_every_sample_once_an_epoch(n, batch_size, epochs):
    plan = Plan(Recipe(lr=one_cycle(0.1)), epochs, n, batch_size)
    assert sum(row.n for row in plan.rows) == max(1, round(epochs * n))
    for epoch in range(int(epochs)):
        rows = [row for row in plan.rows if row.epoch == epoch]
        assert [row.first for row in rows] == [sum(r.n for r in rows[:i]) for i in range(len(rows))]
        assert sum(row.n for row in rows) == n
    assert max(row.lr for row in plan.rows) == 0.1 and [row.step for row in plan.rows] == list(range(len(plan)))


def test_the_schedule_does_not_depend_on_micro_batches():
    a, b = (Plan(Recipe(lr=one_cycle(0.1)), 2, 100, 32, micro) for micro in (None, 8))
    assert a.rows == b.rows and a.fingerprint != b.fingerprint


@pytest.mark.parametrize("wrong", [dict(epochs=0), dict(epochs=-1), dict(epochs=math.nan), dict(n=0), dict(batch_size=0), dict(batch_size=2.5), dict(micro=-1)])
def test_a_plan_refuses(wrong):
    with pytest.raises(FastcourseError, match=next(iter(wrong))):
        Plan(**dict(recipe=Recipe(lr=0.1), epochs=1, n=10, batch_size=4) | wrong)
