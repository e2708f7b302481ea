"""What lesson 2 shows from files: the traces go back to their key and their script, the figures to the benchmarks' results."""
import importlib.util
import json

import numpy as np
import pytest
import torch
from conftest import ROOT

from fastcourse.train.recordings import as_arrays, recorded

RECORDED = recorded("one_cycle")
TRACES, PEAK = RECORDED["traces"], RECORDED["peak"]
T_97_5 = 2.776      # Student's t with four degrees of freedom, from the tables


def result(name): return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def script():
    "The script that made the file, with its neighbours importable as when it is run"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks" / "prepare")
        spec = importlib.util.spec_from_file_location("traces", ROOT / RECORDED["script"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def half_wave(start, end, s): return start + (end - start) * (1 - np.cos(np.pi * s)) / 2


def cycle(steps, n):
    "PyTorch's one-cycle by its documentation: up over the first three tenths, from a 25th of the peak; down to a 10,000th of that start"
    top, at = 0.3 * steps - 1, np.arange(n)
    up, down = half_wave(PEAK / 25, PEAK, at / top), half_wave(PEAK, PEAK / 25e4, (at - top) / (steps - 1 - top))
    return np.where(at <= top, up, down)


def as_meant() -> dict:
    "Each diagnosis as a curve, thought out from what went wrong"
    whole = cycle(160, 160)
    dip = np.where(np.arange(160) < 40, PEAK * (1 / 25 + 24 / 25 * np.arange(160) / 40), PEAK * (1 + np.cos(np.pi * (np.arange(160) - 40) / 80)) / 2)
    return {"healthy": whole, "stepped twice": np.concatenate([whole[::2], np.full(80, whole[-1])]), "stepped once an epoch": np.repeat(whole[:4], 40),
            "planned for too many steps": cycle(640, 160), "restarted": np.tile(whole[:80], 2), "planned for too few steps": dip}


def test_each_trace_is_what_its_mistake_makes_of_a_schedule(script):
    assert {letter: trace["diagnosis"] for letter, trace in TRACES.items()} == script.LETTERS
    meant = as_meant()
    assert sorted(meant) == sorted(script.LETTERS.values())
    for trace in TRACES.values(): np.testing.assert_allclose(trace["lr"], meant[trace["diagnosis"]], rtol=1e-3, atol=2e-4 * PEAK)


def test_the_file_is_whole_and_small(script):
    assert script.FILE.stat().st_size < 60_000
    for trace in TRACES.values():
        assert len(trace["lr"]) == len(trace["loss"]) == 160 and np.isfinite(trace["loss"]).all()
    assert len({trace["loss"][0] for trace in TRACES.values()}) == 1                     # the same weights and the same first batch


def test_what_is_shown_is_what_was_measured(script):
    "The recording holds the benchmarks' present results, not those of an earlier run"
    made = as_arrays(script.rounded(script.measured()))
    np.testing.assert_equal({name: RECORDED[name] for name in made}, made)


def test_the_schedules_were_compared_fairly():
    "Each rate is the best by the validation loss of seeds that are not judged, and the intervals are Student's"
    found = result("schedules")
    assert not set(found["seeds"]) & set(found["choosing"])
    for one in found["schedules"].values():
        losses = {float(rate): loss for rate, loss in one["chosen_by"].items()}
        assert one["rate"] == min(losses, key=losses.get) and len(one["runs"]) == len(found["seeds"]) == 5
        assert min(losses) < one["rate"] < max(losses)                                   # not at the edge of what was tried
    for name, differences in found["against_one_cycle"].items():
        mine, theirs = ([run["test_accuracy"] for run in found["schedules"][s]["runs"]] for s in (name, "one_cycle"))
        d = np.subtract(mine, theirs)
        half = T_97_5 * d.std(ddof=1) / 5**0.5
        np.testing.assert_allclose(differences["test_accuracy"], [d.mean(), d.mean() - half, d.mean() + half], atol=1e-5)


def test_warm_up_is_measured_from_equal_starts():
    "The seed decides the first weights, so before the first step the curvature is the same with and without warm-up"
    for rates in result("warmup")["settings"].values():
        for ways in rates.values():
            before = [[pair[0] for pair in ways[how]["curvature"]] for how in ("at_once", "warmed_up")]
            assert before[0] == before[1] and len(before[0]) == 5


@pytest.mark.slow
def test_a_trace_can_be_made_again(script):
    "The rates to the last recorded digit; the loss as far as other float32 additions let it (compare test_recordings)"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try: again = script.traces(["F"])["F"]
    finally: torch.set_num_threads(threads)
    np.testing.assert_allclose(again["lr"], TRACES["F"]["lr"], rtol=5e-4)
    np.testing.assert_allclose(again["loss"], TRACES["F"]["loss"], rtol=2e-3)
