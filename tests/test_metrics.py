"""Metrics against scikit-learn, brute force and laws; intervals by group; money against an account kept by hand."""
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn import metrics as sk

from fastcourse.settings import FastcourseError
from fastcourse.train.data import from_arrays
from fastcourse.train.interval import interval
from fastcourse.train.learner import Learner
from fastcourse.train.metrics import (
    accuracy, at_threshold, auc, confusion, missed_per_1000, recall_at, roc, threshold_at)
from fastcourse.train.plot_scores import histogram, roc_plot
from fastcourse.train.returns import deflated_sharpe, drawdown, expected_best, profit, sharpe


@st.composite
def films(draw):
    "Scores with many ties, and targets of both classes"
    targets = draw(st.lists(st.integers(0, 1), min_size=2, max_size=40))
    assume(0 < sum(targets) < len(targets))
    return np.array(draw(st.lists(st.integers(-8, 8), min_size=len(targets), max_size=len(targets)))), np.array(targets)


def normals(n, seed=0, shift=1.5):
    "n films, 60 % with the finding, whose scores lie `shift` standard deviations higher"
    rng = np.random.default_rng(seed)
    targets = np.arange(n) % 5 < 3
    return shift * targets + rng.normal(size=n), targets.astype(int)


@given(films())
def test_auc_and_roc_agree_with_scikit_learn(drawn):
    scores, targets = drawn
    curve = roc(scores, targets)
    assert auc(scores, targets) == pytest.approx(sk.roc_auc_score(targets, scores), abs=1e-12)
    oracle = sk.roc_curve(targets, scores, drop_intermediate=False)
    for ours, theirs in zip(curve, oracle): np.testing.assert_allclose(ours, theirs)
    assert np.trapezoid(curve.recalls, curve.false_alarms) == pytest.approx(auc(scores, targets), abs=1e-12)


@given(films())
def test_auc_sees_the_order_alone(drawn):
    scores, targets = drawn
    value = auc(scores, targets)
    assert auc(scores**3 + 5 * scores, targets) == auc(np.exp(scores), targets) == value
    assert auc(-scores, targets) == pytest.approx(1 - value, abs=1e-15)
    assert auc(scores, 1 - targets) == pytest.approx(1 - value, abs=1e-15)


@given(films(), st.floats(0, 1))
def test_no_threshold_finds_more_without_exceeding_the_rate(drawn, rate):
    scores, targets = drawn
    point = recall_at(scores, targets, rate)
    assert point.false_alarms <= rate
    for t in [*scores, math.inf]:
        called = scores >= t
        if called[targets == 0].mean() <= rate: assert called[targets == 1].mean() <= point.recall
    assert point == at_threshold(scores, targets, threshold_at(scores, targets, rate))


@pytest.mark.parametrize("n", [20, 100, 700])
def test_a_rate_that_falls_on_a_film_is_reached(n):
    "k of n films without the finding are k/n, for rates written in the usual way too"
    scores, targets = np.arange(n + 1), np.r_[np.zeros(n), 1]
    for k in range(0, n, n // 20): assert recall_at(scores, targets, k / n).false == k
    assert recall_at(scores, targets, 0.05).false == n // 20


def test_all_ways_to_give_scores_agree():
    scores, targets = normals(200)
    logits = np.stack([1 - scores / 2, 1 + scores / 2], 1)
    ways = [(logits, targets), (torch.tensor(logits), torch.tensor(targets)), (scores[:, None], targets == 1),
            (scores.tolist(), targets.tolist())]
    for s, t in ways: assert auc(s, t) == pytest.approx(auc(scores, targets), abs=1e-12)
    half = torch.tensor(logits, dtype=torch.bfloat16, requires_grad=True)
    assert abs(auc(half, targets) - auc(scores, targets)) < 0.01
    assert accuracy(logits, targets) == accuracy(scores, targets, threshold=0) == at_threshold_accuracy(scores, targets)


def at_threshold_accuracy(scores, targets):
    point = at_threshold(scores, targets, 0)
    return (point.found + point.cleared) / len(targets)


def test_confusion_agrees_with_scikit_learn():
    rng = np.random.default_rng(1)
    scores, targets = rng.normal(size=(300, 4)), rng.integers(0, 3, 300)    # the last class is only ever chosen
    table = confusion(scores, targets, classes="abcd")
    np.testing.assert_array_equal(table, sk.confusion_matrix(targets, scores.argmax(1), labels=range(4)))
    assert accuracy(scores, targets) == sk.accuracy_score(targets, scores.argmax(1)) == np.trace(table) / 300
    assert (table.index.name, table.columns.name, list(table.columns)) == ("true", "chosen", list("abcd"))


def test_missed_findings_follow_the_prevalence():
    "Recall 3/4. The set: 1 missed of 10. At 5 % prevalence: 50 findings, a quarter missed"
    point = at_threshold([4, 3, 2, 0, 0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 0, 0, 0, 0, 0, 0], 2)
    assert missed_per_1000(point) == 100 and missed_per_1000(point, 0.05) == 12.5 and missed_per_1000(point, 0) == 0


def test_a_learner_evaluates_them():
    scores, targets = normals(200)
    data = from_arrays(np.stack([scores, -scores], 1), targets, batch_size=32)
    learner = Learner(lambda: torch.nn.Linear(2, 2), data, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    said, (s, y, _) = learner.evaluate(metrics=[auc, recall_at]), learner.predict()
    assert said["auc"] == auc(s, y) and said["recall_at"] == recall_at(s, y).recall


def test_interval_is_keyed_and_leaves_global_generators_alone():
    scores, targets = normals(100)
    states = lambda: (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    before, first = states(), interval(auc, scores, targets)
    random.random(), np.random.rand(), torch.rand(1)
    moved = states()
    assert interval(auc, scores, targets) == first != interval(auc, scores, targets, seed=1)
    assert states() == moved != before


def test_copies_of_a_film_change_nothing_when_patients_are_drawn():
    "Each of 100 patients 4 times: drawn by patient the interval is that of single films; by film it is half as wide"
    scores, targets = normals(100)
    single = interval(auc, scores, targets)
    order = np.random.default_rng(2).permutation(400)
    copied = scores.repeat(4)[order], targets.repeat(4)[order]
    grouped = interval(auc, *copied, groups=np.arange(100).repeat(4)[order])
    assert (grouped.low, grouped.high) == pytest.approx((single.low, single.high), abs=1e-12)
    by_film = interval(auc, *copied)
    assert (grouped.high - grouped.low) / (by_film.high - by_film.low) == pytest.approx(2, rel=0.15)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_interval_holds_the_estimate(seed):
    found = interval(auc, *normals(60, seed, shift=0.8), groups=np.arange(60) // 2, n=200)
    assert found.low <= found.value <= found.high


def test_interval_covers_the_truth_when_groups_are_drawn():
    """100 sets of 40 patients with 4 equal films, the mean of whose scores is 0. Of 95 %-intervals at least 86 hold 0
    (4 standard errors below 95 allow for the small n too); by film they are half as wide: 2 Phi(0.98) - 1 = 67 %."""
    covered = dict(patient=0, film=0)
    mean = lambda s, t: s.mean()
    for seed in range(100):
        scores = np.random.default_rng(seed).normal(size=40).repeat(4)
        for unit, groups in dict(patient=np.arange(40).repeat(4), film=None).items():
            found = interval(mean, scores, np.zeros(160), groups, n=200)
            covered[unit] += found.low <= 0 <= found.high
    assert covered["patient"] >= 86 and covered["film"] <= 80


def test_undefined_resamples_are_counted_or_refused():
    "Of 60 patients k have the finding: none of them is drawn with (1 - k/60)^60, 1.5 % for 4 and 13 % for 2"
    targets = lambda k: (np.arange(60) < k).astype(int)
    found = interval(auc, np.arange(60.0), targets(4))
    assert 3 <= found.undefined <= 32                              # 15, and 4 standard deviations of 4
    assert f"{found.undefined} of them undefined" in repr(found)
    with pytest.raises(FastcourseError, match=r"undefined in 1\d\d of 1,000 resamples of 60 samples: All 60 targets"):
        interval(auc, np.arange(60.0), targets(2))
    nan_often = lambda s, t: math.nan if t[0] else 1.0
    with pytest.raises(FastcourseError, match="gave NaN"): interval(nan_often, np.zeros(60), targets(30)[::-1])


YES = [1, 0, 1]


@pytest.mark.parametrize("call, says", [
    (lambda: auc([1, 2, 3], [1, 1, 1]), "All 3 targets are 1: one class only"),
    (lambda: auc([1, 2], YES), "lengths differ: scores 2, targets 3"),
    (lambda: auc([1, math.nan, math.inf], YES), "2 of 3 scores are NaN or infinite, the first in row 1"),
    (lambda: auc([[1, 2], [3, math.nan], [0, 0]], YES), "1 of 6 scores are NaN or infinite, the first in row 1"),
    (lambda: auc([], []), "no scores"),
    (lambda: auc(3, 1), "one class"),
    (lambda: auc(np.zeros((3, 5)), YES), r"\[3, 5\]"),
    (lambda: auc([1, 2, 3], ["ill", "well", "ill"]), "targets are not one array of numbers"),
    (lambda: auc([1, 2, 3], [0, 1, 2]), "there is 2"),
    (lambda: auc([1, 2, 3], [[1], [0], [1]]), r"targets have the shape \[3, 1\]"),
    (lambda: recall_at([1, 2, 3], YES, 5), "false-alarm rate is 5"),
    (lambda: recall_at([1, 2, 3], YES, math.nan), "false-alarm rate is nan"),
    (lambda: missed_per_1000(at_threshold([1, 2, 3], YES, 2), -0.1), "prevalence is -0.1"),
    (lambda: at_threshold([1, 2, 3], YES, math.nan), "threshold is NaN"),
    (lambda: accuracy([1, 2, 3], YES), "needs a threshold"),
    (lambda: accuracy(np.eye(3), [0, 1, 3]), "3 is none of the 3 classes"),
    (lambda: confusion(np.eye(3), [0, 1, 2], classes=["a"]), "1 names for 3 classes"),
    (lambda: interval(auc, [1, 2, 3], YES, groups=[]), "lengths differ: groups 0, samples 3"),
    (lambda: interval(auc, [1, 2, 3], YES, groups=[7, 7, 7]), "one group only"),
    (lambda: interval(auc, [1, 2, 3], YES, groups=["a", None, "b"]), "no group"),
    (lambda: interval(auc, [1, 2, 3], YES, level=1), "level of 1"),
    (lambda: interval(auc, [1, 2, 3], YES, level=0.9, n=19), "at least 20"),
    (lambda: interval(auc, [1, 1, 1], [1, 1, 1]), "one class only"),
    (lambda: profit([1, 2], [1, 2, 3], 0), "lengths differ: returns 2, positions 3"),
    (lambda: profit([0.1, 0.2], [math.nan, 1], 0), "1 of 2 positions are NaN"),
    (lambda: profit([0.1, 0.2], [1, 1], -0.1), "cost is -0.1"),
    (lambda: profit([[0.1, 0.2]], [[1, 1]], 0), r"returns have the shape \[1, 2\]"),
    (lambda: drawdown([]), "no returns"),
    (lambda: sharpe([0.1, 0.1, 0.1]), "All returns are equal"),
    (lambda: sharpe([0.1]), "All returns are equal"),
    (lambda: sharpe([0.1, 0.2], trials=0), "trials is 0"),
    (lambda: sharpe([0.1, 0.2], trials=1.5), "trials is 1.5"),
    (lambda: sharpe([0.1, 0.2]).deflated, "not stated"),
    (lambda: deflated_sharpe(2.5, 10, 250, skew=3), "per period, not per year"),
    (lambda: roc_plot([1, 2]), "by name"),
    (lambda: histogram([1, 0, -2], xlabel="rate"), "2 of 3 values"),
])
def test_what_cannot_be_answered_is_said(call, says):
    with pytest.raises(FastcourseError, match=says) as error: call()
    assert error.value.next


def test_the_figure_marks_the_recall_that_recall_at_gives():
    scores, targets = normals(300)
    picture, point = roc_plot({"test": roc(scores, targets)}, at=0.05), recall_at(scores, targets, 0.05)
    assert f"area {auc(scores, targets):.3f}, recall {point.recall:.2f} at 0.05" in picture.alt


def test_a_histogram_counts_every_finite_value():
    values = np.r_[np.geomspace(1e-6, 1e3, 1000), math.nan]
    (line,) = histogram(values, xlabel="rate").axes[0].lines
    assert line.get_ydata()[1:-1:2].sum() == 1000 and "1 not finite" in line.get_label()


rows = st.lists(st.tuples(st.floats(-0.2, 0.2), st.floats(-2, 2)), min_size=1, max_size=30)


@given(rows, st.floats(0, 0.01))
def test_profit_is_that_of_an_account(table, cost):
    "An account of 1 each period: before the return it trades to the position and pays, then the position earns"
    held, earned = 0.0, []
    for gain, position in table:
        account = 1 - cost * abs(position - held)
        held = position
        earned.append(account + held * gain - 1)
    np.testing.assert_allclose(profit(*map(list, zip(*table)), cost), earned, atol=1e-14)


@given(rows, st.integers(0, 29))
def test_the_past_does_not_know_the_future(table, t):
    returns, positions = map(np.array, zip(*table))
    later = np.arange(len(table)) > t
    changed = profit(np.where(later, 0.5, returns), np.where(later, -1, positions), 0.001)
    np.testing.assert_array_equal(changed[~later], profit(returns, positions, 0.001)[~later])


@given(st.lists(st.floats(-0.9, 0.9), min_size=1, max_size=30))
def test_drawdown_is_the_worst_pair_of_days(returns):
    wealth = [1.0]
    for r in returns: wealth.append(wealth[-1] * (1 + r))
    worst = max(1 - wealth[j] / wealth[i] for i in range(len(wealth)) for j in range(i, len(wealth)))
    assert drawdown(returns) == pytest.approx(worst, abs=1e-12)


def test_sharpe_and_its_moments():
    returns = np.random.default_rng(0).gamma(2, 0.01, 500) - 0.019
    ratio = sharpe(returns, 12, trials=7)
    assert ratio.value == pytest.approx(returns.mean() / np.std(returns, ddof=1) * math.sqrt(12))
    assert (ratio.skew, ratio.kurtosis) == pytest.approx((stats.skew(returns), stats.kurtosis(returns, fisher=False)))
    assert sharpe(3 * returns).value == pytest.approx(sharpe(returns).value) == pytest.approx(-sharpe(-returns).value)
    assert ratio.deflated == deflated_sharpe(ratio.value / math.sqrt(12), 7, 500, ratio.skew, ratio.kurtosis)


@pytest.mark.parametrize("trials, said", [(None, "trials not stated"), (1, "trials: 1 "), (2500, "trials: 2,500 ")])
def test_a_sharpe_ratio_never_stands_alone(trials, said):
    ratio = sharpe([0.02, 0.01, -0.01, 0.03], trials=trials)
    assert said in repr(ratio) == str(ratio) and said in f"{ratio}"


def test_expected_best_is_close_to_the_exact_integral():
    for n in (3, 4, 6, 8, 12, 30, 100, 1000):
        density = lambda x: n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1)
        exact, _ = integrate.quad(lambda x: x * density(x), -9, 12, points=[0, 3, 5])
        assert expected_best(n) == pytest.approx(exact, rel=0.03)


def test_luck_is_what_noise_shows():
    "The best of 20 noises of 250 days, 500 times: the mean within 3 % (the formula) and 4 standard errors of `luck`"
    noises = np.random.default_rng(0).normal(size=(500, 250, 20))
    best = (noises.mean(1) / noises.std(1, ddof=1)).max(1) * math.sqrt(252)
    luck = replace(sharpe([0.01, 0.0] * 125), trials=20).luck
    assert abs(best.mean() - luck) < 0.03 * luck + 4 * best.std() / math.sqrt(500)


@given(st.floats(-0.3, 0.3), st.integers(1, 500), st.integers(2, 5000))
def test_more_trials_never_help(ratio, trials, periods):
    assert deflated_sharpe(ratio, trials + 1, periods) <= deflated_sharpe(ratio, trials, periods) <= 1
    above_zero = stats.norm.cdf(ratio * math.sqrt((periods - 1) / (1 + ratio**2 / 2)))
    assert deflated_sharpe(ratio, 1, periods) == pytest.approx(above_zero)
    assert deflated_sharpe(expected_best(trials) / math.sqrt(periods - 1), trials, periods) == pytest.approx(0.5)
