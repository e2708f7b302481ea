"""Prices and their facts; walking forward as laws; series tasks against a hand-written oracle, a leak test, known figures."""
import shutil
import tomllib

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fastcourse.settings import FastcourseError
from fastcourse.train import markets
from fastcourse.train.cards import DataError
from fastcourse.train.markets import energy_daily, facts, fx_daily
from fastcourse.train.series import persistence, series_task, walk_forward

TABLES = {"fx_daily": fx_daily, "energy_daily": energy_daily}


@pytest.fixture(scope="module")
def fx(): return fx_daily()


@pytest.fixture(scope="module")
def energy(): return energy_daily()


def walk(n=2200, seed=3):
    "Prices of a random walk whose volatility swings, from 2008 on"
    rng = np.random.default_rng(seed)
    days = pd.date_range("2008-01-01", periods=n, freq="B")
    size = 0.01 * np.exp(0.5 * np.sin(np.arange(n) / 40))
    return pd.DataFrame({"price": 100 * np.exp(np.cumsum(size * rng.normal(size=n)))}, days)


# prices

@pytest.mark.parametrize("name", TABLES)
def test_facts_are_those_of_the_table(name):
    df, known = TABLES[name](), facts(name)
    assert df.shape == (known["rows"], known["columns"])
    assert [df.index[0].date(), df.index[-1].date()] == [known["first"], known["last"]]
    assert isinstance(df.index, pd.DatetimeIndex) and df.index.is_monotonic_increasing and df.index.is_unique
    assert set(df.dtypes) == {np.dtype(float)} and not df.isna().all(axis=1).any() and df.isna().any(axis=None)
    file = ROOT / "fastcourse" / "data" / known["file"]
    assert file.stat().st_size == known["bytes"] and known["file"] in file.with_name(f"{name}.LICENSE").read_text()
    for needed in "licence", "attribution", "source", "units": assert known[needed]


def test_every_rate_is_units_per_dollar(fx):
    "Rates of 2017-12-01 as newspapers gave them: 1.19 dollars a euro, 1.35 a pound, 0.76 an Australian, 0.69 a New Zealand dollar"
    day = fx.loc["2017-12-01"]
    quoted = {"Euro": 1.19, "United Kingdom": 1.35, "Australia": 0.76, "New Zealand": 0.69}
    assert {c: round(1 / day[c], 2) for c in quoted} == quoted
    assert 110 < day["Japan"] < 115 and 1.2 < day["Canada"] < 1.35


def test_the_problems_named_are_there(fx, energy):
    still = {c: round(float((fx[c].dropna().diff().iloc[1:] == 0).mean()), 2) for c in fx}
    jumps = {c: int((np.log(fx[c].dropna()).diff().abs() > 0.15).sum()) for c in fx}
    problems = " ".join(facts("fx_daily")["problems"])
    for c in "Venezuela", "China", "India", "Malaysia", "Thailand": assert f"{c} " in problems and f"{still[c] * 100:.0f} %" in problems
    assert f"On {sum(jumps.values())} days" in problems and f"{jumps['Venezuela']} of them in Venezuela" in problems
    assert energy["wti"].idxmin() == pd.Timestamp("2020-04-20") and energy["wti"].min() == -36.98


def test_a_cut_file_is_named(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "fastcourse" / "data" / "markets", tmp_path / "markets")
    monkeypatch.setattr(markets, "_FOLDER", tmp_path)
    with pytest.raises(DataError, match="fx_daily.csv.gz is missing"): fx_daily()
    (tmp_path / "fx_daily.csv.gz").write_bytes((ROOT / "fastcourse" / "data" / "fx_daily.csv.gz").read_bytes()[:-1])
    with pytest.raises(DataError, match="509,050 bytes.*should be fd089bd0"): fx_daily()


def test_facts_travel_with_the_package():
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fastcourse"]
    assert {"data/*", "data/*/*"} <= set(package)


# walking forward

@st.composite
def calendars(draw):
    "Day numbers in any order, some repeated, enough of them for the folds and the gap"
    folds, embargo, horizon = draw(st.integers(1, 6)), draw(st.integers(0, 4)), draw(st.integers(0, 4))
    least = (folds + 1) * (embargo + horizon + 1)
    distinct = draw(st.sets(st.integers(0, 300), min_size=least, max_size=least + 20))
    repeated = draw(st.lists(st.sampled_from(sorted(distinct)), max_size=20))
    return np.array(draw(st.permutations([*distinct, *repeated]))), folds, embargo, horizon


@given(calendars())
@settings(max_examples=100, deadline=None)
def test_walk_forward_keeps_time(drawn):
    days, folds, embargo, horizon = drawn
    distinct = sorted(set(days.tolist()))
    parts = walk_forward(np.datetime64("2020-01-01") + days, folds, embargo, horizon)
    assert len(parts) == folds
    row = {day: i for i, day in enumerate(distinct)}
    for train, test in parts:
        ends, first = max(row[d] for d in days[train].tolist()) + horizon, min(row[d] for d in days[test].tolist())
        assert first - ends - 1 == embargo
        assert set(days[train]) == set(distinct[:first - embargo - horizon])
        assert sorted(set(row[d] for d in days[test].tolist())) == list(range(first, first + len(set(days[test]))))
        assert (np.diff(days[train]) >= 0).all() and (np.diff(days[test]) >= 0).all()
        assert len(set(train.tolist())) == len(train) == np.isin(days, days[train]).sum()
    tested = np.concatenate([test for _, test in parts])
    start = days[parts[0][1]].min()
    assert sorted(tested.tolist()) == np.flatnonzero(days >= start).tolist()
    assert (np.diff(days[tested]) >= 0).all()
    sizes = [len(set(days[test])) for _, test in parts] + [sum(d < start for d in distinct)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("dates", [pd.date_range("2020-01-01", periods=9), pd.date_range("2020-01-01", periods=9, tz="UTC"),
                                   [f"2020-01-0{i}" for i in range(1, 10)], pd.Series(pd.date_range("2020-01-01", periods=9))])
def test_walk_forward_takes_dates_in_any_form(dates):
    ((train, test),) = walk_forward(dates, 1, 2)
    assert train.tolist() == [0, 1] and test.tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("folds, embargo, horizon, says", [
    (0, 1, 0, "folds=0"), (1.5, 1, 0, "folds=1.5"), (2, -1, 0, "embargo=-1"), (2, "5d", 0, "embargo='5d'"),
    (2, 1, -1, "horizon=-1"), (2, 3, 0, "fall into the gap"), (2, 1, 2, "fall into the gap"), (20, 0, 0, "fall into the gap")])
def test_walk_forward_refuses(folds, embargo, horizon, says):
    with pytest.raises(FastcourseError, match=says): walk_forward(pd.date_range("2020-01-01", periods=9), folds, embargo, horizon)


# the task

@pytest.mark.parametrize("target", ["volatility", "direction"])
def test_features_and_targets_as_written_by_hand(target):
    "Plain loops over one day at a time, horizon 4 and window 30"
    df, h, w = walk(), 4, 30
    data = series_task(df, "price", target, h, w)
    p = df["price"].tolist()
    def ret(i): return np.log(p[i] / p[i - 1])
    def vol(i, n): return np.sqrt(sum(ret(j)**2 for j in range(i - n + 1, i + 1)) / n)
    assert data.card.features[-4:] == tuple(f"volatility of {n} days" for n in (4, 5, 21, 63))
    for split in data.splits.values():
        for row in (0, len(split) // 2, len(split) - 1):
            i = df.index.get_loc(pd.Timestamp(split.meta["date"][row]))
            usual = np.median([vol(j, h) for j in range(i - w + 1, i + 1)])
            wanted = [ret(i - k) for k in range(5)] + [abs(ret(i - k)) for k in range(5)] + [vol(i, n) for n in (4, 5, 21, 63)]
            assert np.allclose(split.x[row].numpy(), np.array(wanted) / usual, rtol=1e-5, atol=1e-7)
            outcome, bar = (vol(i + h, h), usual) if target == "volatility" else (np.log(p[i + h] / p[i]), 0)
            assert np.isclose(split.meta["outcome"][row], outcome) and int(split.y[row]) == (outcome > bar)
            assert pd.Timestamp(split.meta["end"][row]) == df.index[i + h]


def moved(df, t, seed):
    "The same prices up to day t, others after it"
    noise = np.random.default_rng(seed).normal(size=len(df)) * 0.05
    return df.mul(np.where(df.index <= t, 1, np.exp(noise)), axis=0)


@pytest.mark.parametrize("target", ["volatility", "direction"])
@pytest.mark.parametrize("at", [400, 1000, 1290, 1310, 1500, 2100])
def test_nothing_known_by_a_day_depends_on_later_prices(target, at):
    df = walk()
    t = df.index[at]
    a, b = series_task(df, "price", target), series_task(moved(df, t, at), "price", target)
    later = 0
    for one, two in zip(a.splits.values(), b.splits.values(), strict=True):
        assert (one.meta["date"] == two.meta["date"]).all()
        known, ended = one.meta["date"] <= t.to_datetime64(), one.meta["end"] <= t.to_datetime64()
        assert torch.equal(one.x[known], two.x[known]) and torch.equal(one.y[ended], two.y[ended])
        if target == "volatility": assert (one.meta["persistence"][known] == two.meta["persistence"][known]).all()
        assert (one.x[~known] != two.x[~known]).any(1).all()
        later += (one.y[~ended] != two.y[~ended]).sum()
    assert later > 0, "the change was too small to show anything"


def test_training_knows_nothing_of_valid_and_test():
    "Not even their mean and spread: prices after the last training target change nothing in training"
    df = walk()
    a = series_task(df, "price", "direction")
    b = series_task(moved(df, pd.Timestamp(a.train.meta["end"].max()), 1), "price", "direction")
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.train.y, b.train.y)
    assert torch.equal(a.mean, b.mean) and torch.equal(a.std, b.std)
    assert np.array_equal(a.train.meta["persistence"], b.train.meta["persistence"])
    assert torch.allclose(a.mean, a.train.x.mean(0), atol=1e-5)


@pytest.mark.parametrize("horizon", [1, 5, 20])
def test_splits_lie_in_time_with_a_gap_of_the_horizon(horizon):
    df = walk()
    data = series_task(df, "price", horizon=horizon, test="2014-06-01", valid=0.2)
    rows = [df.index.get_indexer(pd.DatetimeIndex(s.meta["date"])) for s in data.splits.values()]
    for earlier, later in zip(rows, rows[1:]): assert later[0] - earlier[-1] - 1 == horizon
    assert all((np.diff(r) == 1).all() for r in rows)
    assert rows[0][0] == 250 + horizon - 1 if horizon >= 5 else rows[0][0] >= 250
    assert rows[2][0] == df.index.searchsorted(pd.Timestamp("2014-06-01")) and rows[2][-1] == len(df) - 1 - horizon
    assert len(rows[1]) / (rows[1][-1] + 1 - rows[0][0]) == pytest.approx(0.2, abs=0.001)
    whole = series_task(df, "price", horizon=horizon, test="2014-06-01", valid=0)
    assert list(whole.splits) == ["train", "test"] and whole.train.meta["end"][-1] < whole.test.meta["date"][0]


@pytest.mark.parametrize("test", [2013, "2013", np.datetime64("2013-01-01"), pd.Timestamp("2013-01-01", tz="UTC").date()])
def test_the_first_test_date_in_any_form(test):
    assert series_task(walk(), "price", test=test, valid=np.float32(0.15)).test.meta["date"][0] == np.datetime64("2013-01-01")


def test_holidays_are_stepped_over():
    df = walk()
    gaps = df.reindex(df.index.union(pd.date_range(df.index[0], df.index[-1])))
    a, b = series_task(df, "price"), series_task(gaps, "price")
    assert torch.equal(a.test.x, b.test.x) and a.train.meta["date"].tolist() == b.train.meta["date"].tolist()


def test_a_price_below_zero_is_refused_or_left_out(energy):
    with pytest.raises(FastcourseError, match="Not above 0.*1 of 10,226 prices of wti.*-36.98 on 2020-04-20.*drop=True"):
        series_task(energy, "wti")
    dropped, without = series_task(energy, "wti", drop=True), series_task(energy.drop(pd.Timestamp("2020-04-20")), "wti")
    assert torch.equal(dropped.test.x, without.test.x) and np.datetime64("2020-04-20") not in dropped.test.meta["date"]
    assert len(series_task(energy.loc[:"2020-04-19"], "wti").test) > 1000


@pytest.mark.parametrize("change, says", [
    (dict(column="yen"), "not one column 'yen'.*Columns: price"), (dict(target="profit"), "Targets: volatility, direction"), (dict(target=["direction"]), "no target"),
    (dict(horizon=0), "horizon=0"), (dict(horizon=2.5), "horizon=2.5"), (dict(window=1), "window=1"),
    (dict(test="2030-01-01"), "cannot be split at 2030"), (dict(test="2008-06-01"), "cannot be split at 2008"),
    (dict(test="soon"), "'soon' is no date"), (dict(test=None), "None is no date"), (dict(valid=1), "valid=1"), (dict(valid="a"), "valid='a'"),
    (dict(window=5000), "0 usable days"), (dict(batch_size=0), "batch_size=0"),
    (dict(df=walk()[::-1]), "go back at"), (dict(df=pd.concat([walk()[:9], walk()[8:]])), "repeat or go back at 2008-01-11"),
    (dict(df=walk().reset_index()), "date for each row"), (dict(df=walk()["price"]), "date for each row"),
    (dict(df=walk().tz_localize("UTC")), "time zone UTC"), (dict(df=walk().astype(str) + "$"), "not numbers"),
    (dict(df=walk().assign(price=7.0)), "stood still.*Take another column"), (dict(df=walk().replace(walk().iloc[900, 0], np.inf)), "inf on 2011-06-14")])
def test_series_task_refuses_with_a_sentence(change, says):
    with pytest.raises(FastcourseError, match=f"(?s){says}"): series_task(**dict(df=walk(), column="price") | change)


def test_a_peg_is_named_and_the_advice_works(fx):
    with pytest.raises(FastcourseError, match=r"Australia stood still.*277 days between 1972.*df.loc\['1973-09-15':\]"):
        series_task(fx, "Australia")
    assert len(series_task(fx.loc["1973-09-15":], "Australia").test) == len(series_task(fx, "Japan").test)


# the baseline

def test_persistence_is_what_it_says(fx):
    data = series_task(fx, "Japan")
    table, now = persistence(data), data.card.features.index("volatility of 5 days")
    for name, split in data.splits.items():
        ratio = split.x[:, now].numpy()
        assert table.loc[name, "accuracy"] == pytest.approx(((ratio > 1) == split.y.numpy()).mean(), abs=2e-3)
        assert table.loc[name, "auc"] == pytest.approx(roc_auc_score(split.y, split.meta["persistence"]), abs=1e-12)
        assert table.loc[name, "samples"] == len(split)
    assert f"persistence is right on {table.loc['valid', 'accuracy']:.3f} of valid" in repr(data)
    assert f"{table.loc['test', 'accuracy']:.3f} of test" in repr(data) and data.card.title in data.card.text()


@pytest.mark.slow
@pytest.mark.parametrize("column", ["Japan", "United Kingdom"])
def test_a_month_s_persistence_is_as_good_as_a_trained_model(fx, column):
    data = series_task(fx, column)
    month = persistence(data, days=21).loc["test", "accuracy"]
    assert month > persistence(data).loc["test", "accuracy"] and month > logistic(data) - 0.01
    assert np.allclose(persistence(data, days=5), persistence(data), atol=2e-3)
    with pytest.raises(FastcourseError, match="days=10 for .*volatility.*5, 21, 63"): persistence(data, days=10)
    with pytest.raises(FastcourseError, match="days=21 for .*direction"): persistence(series_task(fx, column, "direction"), days=21)


def test_the_baseline_of_direction_is_the_majority_of_training(fx):
    data = series_task(fx, "United Kingdom", "direction")
    table, share = persistence(data), data.train.y.double().mean().item()
    assert share < 0.5 and (table["auc"] == 0.5).all()
    for name, split in data.splits.items(): assert table.loc[name, "accuracy"] == pytest.approx((split.y == 0).double().mean().item())


def test_other_data_have_no_persistence():
    from fastcourse.train.data import from_arrays
    with pytest.raises(FastcourseError, match="no persistence"): persistence(from_arrays(np.eye(40), [0, 1] * 20))


# what can be learned

def logistic(data, steps=300):
    "Accuracy on test of a logistic regression, fitted to all training rows at once"
    train, test = ((s.x - data.mean) / data.std for s in (data.train, data.test))
    w = torch.zeros(train.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(train @ w[1:] + w[0], data.train.y.float()).backward()
        optimizer.step()
    return (((test @ w[1:] + w[0]) > 0) == (data.test.y == 1)).double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("column", ["Japan", "United Kingdom"])
def test_volatility_can_be_learned_a_little_and_direction_cannot(fx, column):
    volatility, direction = series_task(fx, column), series_task(fx, column, "direction")
    assert 0.60 < logistic(volatility) < 0.70 and 0.47 < logistic(direction) < 0.55
    assert 0.45 < volatility.test.y.double().mean() < 0.55
    assert abs(logistic(volatility) - persistence(volatility).loc["test", "accuracy"]) < 0.03, "persistence does most of it"


@pytest.mark.slow
def test_a_leak_would_show(fx):
    "The same regression with the outcome among its features leaves the band at once"
    from dataclasses import replace
    data = series_task(fx, "Japan", "direction")
    def leaky(s): return replace(s, x=torch.cat([s.x, torch.tensor(s.meta["outcome"], dtype=torch.float32)[:, None]], 1))
    train, test = leaky(data.train), leaky(data.test)
    std, mean = torch.std_mean(train.x, 0)
    assert logistic(replace(data, train=train, test=test, mean=mean, std=std)) > 0.9
