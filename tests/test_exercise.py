"""Exercises under answers nobody asked for: nothing passes by accident, nothing raises, no fault of ours becomes the student's."""
import contextlib
import io
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fastcourse.course import attempts, card
from fastcourse.course.attempts import digest
from fastcourse.course.exercise import check_module, exercises, from_module, progress
from fastcourse.course.judge import Exercise, judge
from fastcourse.course.report import gates, report
from fastcourse.settings import FastcourseError


def twos(x):
    """As many twos as x has values, as floats

    The second paragraph is for other readers."""
    ### BEGIN SOLUTION
    return np.full(len(x), 2.0)
    ### END SOLUTION


def all_two(got, x):
    "every value is 2"
    return np.allclose(got, 2)  # as careless as an author may be: it broadcasts, it converts


def nowhere_off(got, x):
    "no value is far from 2"
    return not np.any(np.abs(np.asarray(got) - 2) > 1e-9)  # true of NaN


def as_many(got, x):
    "there are as many as in x"
    return len(got) == len(x)


def all_three(got, x): return np.allclose(got, 3)


X = np.array([5., 7., 9.])
GIVEN = dict(minutes=5, points=3, cases=[(X,), ([4., 4.],)], accept=[all_two, as_many], diagnose={all_three: "These are threes."},
             wrong={"threes": (lambda x: np.full(len(x), 3.), "threes"), "one two": (lambda x: 2., "single value"), "none": (lambda x: None, "return")},
             right={"a list": lambda x: [2.] * len(x)}, hints=["Look at `np.full`.", "Use it."])
TWOS = Exercise("twos", **GIVEN)
CARELESS = Exercise("twos", **GIVEN | dict(accept=[nowhere_off]))


def lesson(*declared, name="made_up", **functions):
    module = types.ModuleType(name)
    vars(module).update({"twos": twos} | functions, **{f"exercise_{i}": e for i, e in enumerate(declared or [TWOS])})
    return module


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path, monkeypatch):
    "A folder that is no workspace, and a session that has just begun"
    monkeypatch.setattr(attempts, "_session", [])
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / ".fastcourse").mkdir()
    (tmp_path / "settings.ini").write_text("[fastcourse]\ntitle = Mine\nseed = 1\nprofile = trading\ndata =\n")
    return tmp_path


@pytest.fixture
def packaged(monkeypatch):
    "Lesson 1 is a made-up one"
    module = lesson(TWOS, Exercise("radio", **GIVEN | dict(profile="radiology")), name="fastcourse.lessons.lr_finding", radio=twos)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def rows(folder): return [json.loads(x) for x in (folder / ".fastcourse" / "attempts.jsonl").read_text().splitlines() if x]


class Agrees:
    "Equal to everything, true, of any length"
    def __eq__(self, other): return True
    def __len__(self): return 3
    def __iter__(self): return iter([2., 2., 2.])


class Leaves(list):
    def _exit(self, *args): raise SystemExit
    __deepcopy__ = __repr__ = __array__ = _exit


class Raises:
    "Raises whatever it is asked"
    def _no(self, *args): raise RuntimeError("no")
    __eq__ = __len__ = __iter__ = __array__ = __repr__ = __bool__ = __float__ = __getattr__ = __deepcopy__ = _no


async def promise(x): return np.full(len(x), 2.)


def writes_into(x):
    for i in range(len(x)): x[i] = 2.
    return x


NASTY = {
    "None": lambda x: None, "a scalar": lambda x: 2., "numpy's scalar": lambda x: np.float64(2), "an array without axis": lambda x: np.array(2.),
    "one value, stretched": lambda x: [2.], "two axes": lambda x: np.full((1, len(x)), 2.), "a column": lambda x: np.full((len(x), 1), 2.),
    "nothing": lambda x: [], "an empty array": lambda x: np.zeros(0), "an empty text": lambda x: "", "an empty dict": lambda x: {},
    "a generator": lambda x: (2. for _ in x), "a map": lambda x: map(lambda v: 2., x), "itertools": lambda x: itertools.repeat(2.),
    "a generator function": lambda x: (yield 2.), "a promise": promise, "text": lambda x: "2", "texts": lambda x: ["2"] * len(x),
    "numpy's texts": lambda x: np.array(["2"] * len(x)), "objects": lambda x: np.array([2., None, 2.]), "a hole": lambda x: [2.] * (len(x) - 1) + [None],
    "NaN": lambda x: np.full(len(x), np.nan), "one NaN": lambda x: [2.] * (len(x) - 1) + [float("nan")], "infinity": lambda x: np.full(len(x), np.inf),
    "complex": lambda x: np.full(len(x), 2. + 0j), "truth values": lambda x: np.full(len(x), True), "a dict": lambda x: dict.fromkeys(range(len(x)), 2.),
    "a set": lambda x: {2.}, "itself": lambda x: NASTY["itself"], "masked": lambda x: np.ma.masked_array(np.full(len(x), 2.), mask=[True] * len(x)),
    "unsigned": lambda x: np.full(len(x), 2, np.uint8), "leaves Python when copied or shown": lambda x: Leaves([1.] * len(x)), "a class": lambda x: float, "a module": lambda x: np, "an ellipsis": lambda x: ...,
    "ragged": lambda x: [[2.], [2., 2.]], "agrees to everything": lambda x: Agrees(), "raises at everything": lambda x: Raises(),
    "its argument": lambda x: x, "a view": lambda x: np.asarray(x)[:], "writes into its argument": writes_into, "too long a number": lambda x: 10**400,
    "NotImplemented": lambda x: NotImplemented, "an error as a value": lambda x: ValueError("2"), "no arguments": lambda: 2., "two arguments": lambda x, y: 2.,
}


@pytest.mark.parametrize("exercise", [TWOS, CARELESS], ids=["careful", "careless"])
@pytest.mark.parametrize("name", NASTY)
def test_no_nasty_answer_passes_or_breaks_the_checker(exercise, name):
    verdict = judge(exercise, twos, NASTY[name])
    assert verdict.outcome == ("raised" if "arguments" in name else "not yet"), verdict
    assert not verdict and verdict.points == 0 and verdict.message
    assert verdict._repr_mimebundle_()["text/html"] and verdict._repr_mimebundle_()["text/plain"]
    assert "2., 2." not in str(dict(verdict.rows).get("asked")) and "np.full" not in str(verdict)


@pytest.mark.parametrize("name, fragment", {
    "None": "Is a `return` missing?", "a generator": "a generator, which can be read only once", "a map": "a map, which", "a promise": "Leave out `async`",
    "a class": "Are brackets missing", "nothing": "something empty", "a scalar": "is a single value; asked for is a list or array with one axis",
    "two axes": "is an array with 2 axes; asked for is a list or array with one axis", "one value, stretched": "has the shape (1,): too few values",
    "texts": "holds text; numbers are asked for", "truth values": "holds truth values; numbers", "a hole": "a list, which does not hold numbers only",
    "one NaN": "holds NaN", "writes into its argument": "changes its argument"}.items())
def test_what_kind_of_thing_came_back_is_said(name, fragment):
    assert fragment in judge(CARELESS, twos, NASTY[name]).message


@pytest.mark.parametrize("right", [
    lambda x: [2.] * len(x), lambda x: (2,) * len(x), lambda x: np.full(len(x), 2), lambda x: np.full(len(x), 2, np.float32),
    lambda x: [np.float64(2)] * len(x), lambda x: [np.array(2.)] * len(x), lambda x: range(2, 3) and [2.] * len(x), twos])
def test_a_right_answer_passes_however_it_is_written(right):
    assert judge(TWOS, twos, right).outcome == "passed"


def test_tensors():
    torch = pytest.importorskip("torch")
    for dtype in torch.float32, torch.float64, torch.int64:
        assert judge(TWOS, twos, lambda x: torch.full((len(x),), 2, dtype=dtype)).outcome == "passed"
    assert judge(TWOS, twos, lambda x: torch.full((1, len(x)), 2.)).outcome == "not yet"
    assert "NaN" in judge(CARELESS, twos, lambda x: torch.full((len(x),), float("nan"), dtype=torch.bfloat16, requires_grad=True)).message
    assert card.abbreviate(torch.tensor([1., .5], requires_grad=True)) == "Tensor of shape (2,), float32: [1, 0.5]"
    lacks = judge(TWOS, twos, lambda x: torch.ones(2, device="meta").tolist())
    assert lacks.outcome == "raised" and "NotImplementedError" in lacks.message  # torch's own, not a starter's


@pytest.mark.parametrize("value", [{"lr": [1.]}, [np.ones(3), {"a": {2}}], "x" * 10**6, np.zeros((9, 9, 9)), Raises, np.array([]), np.array(["a"])])
def test_any_value_fits_a_line(value):
    if value is Raises: value = [Raises(), {1: Raises()}]
    assert len(card.abbreviate(value)) <= 200 and "\n" not in card.abbreviate(value)


def test_the_students_objects_are_left_alone():
    given = {"rates": [1., 2.], "table": np.ones(2)}
    def spoils(got, x):
        "a predicate that changes what it is given"
        x["rates"].clear(); got.append(3); return True
    def sees_all(got, x):
        "a predicate after it"
        return len(x["rates"]) == 2 and len(got) == 2
    kept = [1., 2.]
    e = Exercise("f", **GIVEN | dict(cases=[(given,)] * 2, accept=[spoils, sees_all], diagnose={}))
    assert judge(e, lambda x: [1., 2.], lambda x: kept).outcome == "passed"
    assert kept == [1., 2.] and given["rates"] == [1., 2.]
    changed = judge(e, lambda x: [1., 2.], lambda x: x["rates"].append(9) or kept)
    assert changed.outcome == "not yet" and "changes its argument" in changed.message
    assert judge(e, lambda x: x["rates"].append(9) or [1., 2.], lambda x: x["rates"].append(9) or kept).outcome == "passed"  # as the reference does


def test_generators_are_given_back_and_cases_are_seeded():
    def draws(x): seen.append(np.random.rand() + random.random()); return twos(x)
    seen = []
    np.random.seed(3), random.seed(3)
    expected = np.random.rand(), random.random()
    np.random.seed(3), random.seed(3)
    judge(TWOS, twos, draws), judge(TWOS, twos, draws)
    assert (np.random.rand(), random.random()) == expected
    assert seen[:2] == seen[2:] and seen[0] != seen[1]


# outcomes

def test_an_error_comes_with_its_input_and_the_students_line():
    def broken(x):
        total = sum(x)
        return total / (total - 8)
    verdict = judge(TWOS, twos, broken)  # the second input sums to 8
    rows = dict(verdict.rows)
    assert verdict.outcome == "raised" and verdict.message == "ZeroDivisionError: float division by zero" and rows["input"] == "twos([4.0, 4.0])"
    assert rows["where"].endswith("in broken: return total / (total - 8)") and rows["right for"] == "0 of 2 inputs"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), RecursionError(), MemoryError(), BaseException("x"), StopIteration(), Exception(Raises())])
def test_whatever_the_student_raises_is_a_verdict(error):
    def f(x): raise error
    assert judge(TWOS, twos, f).outcome == "raised"


def test_only_ctrl_c_gets_out():
    def f(x): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): judge(TWOS, twos, f)


def test_a_library_that_lacks_something_is_no_starter():
    def f(x): return types.FunctionType(compile("def g(): raise NotImplementedError('no kernel')", "lib.py", "exec").co_consts[0], {})()
    assert judge(TWOS, twos, f).outcome == "raised"
    def stub(x): raise NotImplementedError("It is your turn.")
    assert judge(TWOS, twos, stub).message == "`stub` is not written yet. It is your turn."


@pytest.mark.parametrize("given", [None, 3, "twos", [2., 2.], np.zeros(2), Raises])
def test_a_value_in_place_of_the_function(given):
    if given is Raises: given = Raises()
    verdict = from_module(lesson()).twos.check(given)
    assert verdict.outcome == "not attempted" and "check(twos)`, without brackets" in verdict.message


def broken_predicate(got, x):
    "an unfortunate requirement"
    return 1 / 0


def never(got, x):
    "what nobody can do"
    return False


@pytest.mark.parametrize("changed, reference", [(dict(accept=[broken_predicate]), twos), (dict(accept=[never]), twos), ({}, lambda x: 1 / 0),
                                                (dict(cases=[(threading.Lock(),)]), twos), (dict(cases=[()]), twos)])
def test_our_own_faults_are_never_the_students(changed, reference):
    verdict = judge(Exercise("twos", **GIVEN | changed), reference, lambda *x: np.full(len(x[0]) if x else 1, 2.))
    assert verdict.outcome == "checker failed" and "says nothing about your answer" in verdict.message and "points" not in verdict.aside


def test_a_fault_of_ours_does_not_hide_a_real_one():
    e = Exercise("twos", **GIVEN | dict(accept=[never, all_two]))
    assert judge(e, twos, lambda x: np.full(len(x), 3.)).message == "These are threes."
    def ours(got, x):
        "a requirement that only the second input can meet"
        return len(x) == 2
    e = Exercise("twos", **GIVEN | dict(accept=[ours, all_two]))
    assert judge(e, twos, lambda x: twos(x) + (len(x) == 2)).message == "These are threes."
    assert judge(e, twos, twos).outcome == "checker failed"


def test_an_error_is_shown_before_a_wrong_value():
    assert judge(TWOS, twos, lambda x: None if len(x) == 3 else 1 / 0).outcome == "raised"


def test_the_most_specific_diagnosis_of_all_inputs_is_shown():
    def last(got, *a): return got[-1] == 7
    def long(got, *a): return len(got) > 2
    e = Exercise("twos", **GIVEN | dict(diagnose={last: "The last is 7.", long: "It is long."}))
    verdict = judge(e, twos, lambda x: [1., 1., 1.] if len(x) == 3 else [2., 7.])
    assert verdict.message == "The last is 7." and dict(verdict.rows)["input"] == "twos([4.0, 4.0])"
    assert judge(e, twos, lambda x: [5.] * len(x)).message == "It is long."
    assert judge(e, twos, lambda x: [5., 5.]).message == "Not fulfilled: every value is 2."


def test_a_requirement_that_cannot_even_be_asked_says_why():
    def halves(got, x):
        "its half is 1"
        return ((got / 2) == 1).all()
    verdict = judge(Exercise("twos", **GIVEN | dict(accept=[halves])), twos, lambda x: [2.] * len(x))
    assert verdict.outcome == "not yet" and "its half is 1" in verdict.message and "A list cannot even be asked (TypeError" in verdict.message


def test_a_shape_of_which_nothing_can_be_asked_is_named_with_the_right_one():
    def sums(got, x):
        "its sum with x is 2 more everywhere"
        return np.allclose(np.asarray(got) - np.asarray(x), 2 - np.asarray(x))
    for answer, reference in (lambda x: np.full(2, 2.), twos), (lambda x: {"v": np.full(2, 2.)}, lambda x: {"v": twos(x)}):
        def asks(got, x): return sums(got["v"] if isinstance(got, dict) else got, x)
        asks.__doc__ = sums.__doc__
        verdict = judge(Exercise("twos", **GIVEN | dict(cases=[(X,)], accept=[asks], diagnose={})), reference, answer)
        assert "Your result has the shape (2,); for this input (3,) is asked for." in verdict.message and "ValueError" not in verdict.message


def test_a_diagnosis_that_raises_is_passed_over():
    e = Exercise("twos", **GIVEN | dict(diagnose={broken_predicate: "never shown", all_three: "These are threes."}))
    assert judge(e, twos, lambda x: [3.] * len(x)).message == "These are threes."


def test_what_a_requirement_warns_of_is_not_the_students_business(recwarn):
    def warns(got, x):
        "is finite upside down"
        return not np.isnan(1 / np.zeros(1)).any()
    assert judge(Exercise("twos", **GIVEN | dict(accept=[warns])), twos, twos) and not recwarn.list


def test_printing_goes_through():
    out = io.StringIO()
    with redirect_stdout(out): judge(TWOS, twos, lambda x: print("here") or twos(x))
    assert out.getvalue() == "here\n" * 2  # once a case


# time

def endless(x):
    while True: pass


def stubborn(x):
    try: endless(x)
    except: endless(x)  # noqa: E722


def swallows_all(x):
    while True:
        try: time.sleep(9)
        except BaseException: pass


def swallows_deep_down(x):
    def step():
        for i in range(9): time.sleep(.001)
    while True:
        try: step()
        except BaseException as e: last = e  # noqa: F841
        finally: x = x


def swallows_in_layers(x):
    while True:
        try:
            while True:
                try:
                    while True:
                        try: time.sleep(9)
                        except BaseException: pass
                except BaseException: pass
        except BaseException as e: kept = e  # noqa: F841


def swallows_in_layers_of_functions(x):
    def inner():
        while True:
            try: time.sleep(9)
            except BaseException: pass
    while True:
        try: inner()
        except: x = list(x)  # noqa: E722


def swallows_in_a_library(x):
    while True:
        with contextlib.suppress(BaseException): time.sleep(9)


def recursive_and_endless(x):
    try: return recursive_and_endless(x)
    except RecursionError: endless(x)


def waits_for_a_thread(x):
    threading.Event().wait()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")
@pytest.mark.parametrize("f", [endless, stubborn, swallows_all, swallows_deep_down, swallows_in_layers, swallows_in_layers_of_functions, swallows_in_a_library, recursive_and_endless, waits_for_a_thread])
def test_an_endless_loop_is_named_and_the_old_handler_and_timer_come_back(f):
    def mine(*_): raise AssertionError("the earlier timer must not have gone off yet")
    before, traced = signal.signal(signal.SIGALRM, mine), sys.gettrace()
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        verdict = judge(TWOS, twos, f, limit=.1)
        assert sys.gettrace() is traced and signal.getsignal(signal.SIGALRM) is mine and 50 < signal.getitimer(signal.ITIMER_REAL)[0] < 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert verdict.outcome == "not yet" and "0.1 seconds" in verdict.message and "never ends" in verdict.message
    assert dict(verdict.rows)["input"] == "twos(ndarray of shape (3,), float64: [5, 7, 9])" and dict(verdict.rows)["right for"] == "0 of 2 inputs"


def test_in_another_thread_a_check_works_without_a_limit():
    with ThreadPoolExecutor(1) as pool: assert pool.submit(judge, TWOS, twos, twos, .1).result().outcome == "passed"


def test_an_endless_requirement_or_picture_is_stopped_too():
    def waits(got, x):
        "never answers"
        return endless(x)
    late = judge(Exercise("twos", **GIVEN | dict(accept=[waits])), twos, twos, limit=.05)
    assert late.outcome == "not yet" and "0.05 seconds" in late.message


# what a function may change in passing

def test_what_a_function_changes_in_passing_is_put_back(tmp_path):
    import matplotlib.pyplot as plt
    import torch
    def state():
        return (os.getcwd(), list(warnings.filters), np.geterr(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),
                torch.get_rng_state().tolist(), random.getstate(), plt.get_fignums(), input, dict(os.environ),
                sys.getrecursionlimit(), torch.are_deterministic_algorithms_enabled())
    def changes(x):
        os.chdir(tmp_path.parent), warnings.simplefilter("error"), np.seterr(all="raise"), torch.set_default_dtype(torch.float64), torch.set_grad_enabled(False)
        torch.set_num_threads(before[4] + 1), torch.manual_seed(1), random.seed(1), plt.figure(), plt.plot(x)
        os.environ["FASTCOURSE_SMALL"] = "2"
        sys.setrecursionlimit(before[-2] - 1)
        torch.use_deterministic_algorithms(True)
        changed.append(state())
        return twos(x)
    mine, before, changed = plt.figure(), state(), []
    assert judge(TWOS, twos, changes, limit=60).outcome == "passed" and state() == before and plt.get_fignums() == [mine.number]
    assert all(a != b for a, b in zip(changed[0], before, strict=True)), "each of them was changed, or this test shows nothing"
    plt.close(mine)


def test_a_working_folder_that_the_function_removes(tmp_path):
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    def removes(x):
        os.chdir(tmp_path)
        if (tmp_path / "gone").exists(): (tmp_path / "gone").rmdir()
        return twos(x)
    assert judge(TWOS, twos, removes).outcome == "passed"


def test_input_does_not_wait():
    verdict = judge(TWOS, twos, lambda x: [float(input("? "))] * len(x))
    assert verdict.outcome == "raised" and "Take the value as an argument" in verdict.message and input is __import__("builtins").input


def test_ten_thousand_printed_lines_are_shortened(capsys):
    def chatty(x):
        for i in range(10_000): print("line", i)
        return twos(x)
    assert judge(TWOS, twos, chatty).outcome == "passed"
    out = capsys.readouterr().out
    assert out.startswith("line 0\nline 1\n") and len(out) < 2200 and re.search(r"and 19,\d\d\d more lines", out.splitlines()[-1])


@pytest.mark.parametrize("f, outcome, words", [
    (lambda x: sys.exit(), "raised", "SystemExit"), (lambda x: exit_by_hand(), "raised", "SystemExit"),
    (lambda x: (lambda g: g(g))(lambda g: g(g)), "raised", "RecursionError"), (lambda x: nested(10**5), "not yet", "a list"),
    (lambda x: (twos(x), x.append(x))[0], "not yet", "changes its argument")])
def test_ends_and_depths(f, outcome, words):
    verdict = judge(Exercise("twos", **GIVEN | dict(cases=[([5., 7.],), ([4.],)])), twos, f)
    assert verdict.outcome == outcome and words in verdict.message, verdict


def exit_by_hand(): raise SystemExit


def nested(n):
    out = []
    for _ in range(n): out = [out]
    return out


def test_one_object_handed_out_again_and_again():
    buffer = np.zeros(3)
    def same_one(x): buffer[:] = x[0] * 2; return buffer
    def doubles(got, x):
        "is twice the first, three times"
        return np.array_equal(got, [2 * x[0]] * 3)
    e = Exercise("f", **GIVEN | dict(cases=[([1.],), ([2.],)], accept=[doubles], diagnose={}))
    def right(x): return np.full(3, 2 * x[0])
    assert judge(e, right, right).outcome == "passed"
    verdict = judge(e, right, same_one)
    assert verdict.outcome == "not yet" and "a later call changed an earlier one" in verdict.message


def test_nan_where_the_reference_has_none_and_dates_and_mixed_lists():
    from fastcourse.course.kind import mismatch
    wanted = np.array([np.nan, 1., 2.])
    assert "NaN" in mismatch(np.array([np.nan, np.nan, 2.]), wanted) and mismatch([float("nan"), 5., 5.], wanted) is None
    assert "infinity" in mismatch([1., np.inf, 2.], wanted)
    assert "dates" in mismatch(3, np.datetime64("2026-01-01")) and mismatch(np.datetime64("2020-01-01"), np.datetime64("2026-01-01")) is None
    assert mismatch("x", None) is None, "to say that nothing is asked for would give the answer away"
    assert mismatch(["a", "3"], ["a", 3]) == "At 1: Your result holds text; numbers are asked for."
    assert mismatch([[1, 2], [3, 4, 5]], [[1], [2, 3]]) is None and "a list or a tuple" in mismatch(3., [[1], [2, 3]])
    assert "asked for is a Finder" in mismatch(3., type("Finder", (), {})())


# pictures

class Drawing:
    alt = "Your values\n against the right ones"
    def png(self): return b"\x89PNG..."


def shown(picture, f=None, **more):
    e = Exercise("twos", **GIVEN | dict(picture=picture) | more)
    return judge(e, twos, f or (lambda x: np.full(len(x), 3.)))


def test_a_picture_comes_with_an_answer_that_is_not_right_yet():
    seen = []
    verdict = shown(lambda got, wanted, x: seen.append((got, wanted, x)) or Drawing())
    html, text = verdict._repr_mimebundle_()["text/html"], str(verdict)
    assert '<img src="data:image/png;base64,iVBORy4uLg==" alt="Your values against the right ones"' in html
    assert "Your values against the right ones" in text and "iVBOR" not in text
    (values,) = seen
    for value, expected in zip(values, ([3.] * 3, [2.] * 3, X), strict=True): np.testing.assert_array_equal(value, expected)
    assert not shown(lambda *a: Drawing(), twos).picture and not shown(lambda *a: Drawing(), lambda x: 1 / 0).picture and not shown(lambda *a: None).picture


class Silent(Drawing): alt = " "


class Broken(Drawing):
    def png(self): raise RuntimeError("no")


@pytest.mark.parametrize("picture", [lambda got: None, lambda *a: 1 / 0, lambda *a: sys.exit(), lambda *a: Broken(), lambda *a: 3, lambda *a: np.ones(3)])
def test_a_picture_that_fails_breaks_no_card(picture):
    verdict = shown(picture)
    assert verdict.message == "These are threes." and verdict.picture == () and "<img" not in verdict._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("name", NASTY)
def test_a_real_picture_survives_any_answer(name):
    from fastcourse.train import plot
    def picture(got, wanted, x): return plot.lines({"yours": got, "right": wanted}, xlabel="place", ylabel="value")
    assert judge(Exercise("twos", **GIVEN | dict(picture=picture)), twos, NASTY[name]).outcome in ("not yet", "raised")


def test_a_picture_changes_nothing_the_student_holds():
    kept = np.full(3, 5.)
    def spoils(got, wanted, x): got[:] = 0; wanted[:] = 0; return Drawing()
    assert shown(spoils, lambda x: kept).picture and (kept == 5).all() and X.tolist() == [5., 7., 9.]


# judgements: a function without arguments that answers in words

def which(): return {"A": "rate too high", "B": "rate too low", "C": "just right", "trust": 3}


def part(key):
    def predicate(got): return got[key] == which()[key]
    predicate.__doc__ = f"{key} is judged rightly"
    return predicate


WHICH = Exercise("which", minutes=3, points=4, cases=[()], accept=[part(k) for k in which()], choices=("rate too high", "rate too low", "just right"),
                 diagnose={lambda got: got["A"] == got["B"]: "A and B differ in kind."}, wrong={}, hints=["Look."])


@pytest.mark.parametrize("change, words", [
    (dict(A=" Rate Too-High"), None), (dict(A="rate_too_high", B="RATE TOO LOW."), None), (dict(trust=3.0), None),
    (dict(A="rate too low"), "A and B differ"), (dict(C="rate too low"), "Not fulfilled: C is judged rightly"), (dict(trust=4), "Not fulfilled: trust"),
    (dict(B="rate to low"), "At 'B': 'rate to low' is none of the words to choose from: 'rate too high', 'rate too low', 'just right'. Did you mean 'rate too low'?"),
    (dict(B="hm"), "'just right'."), (dict(B=""), "none of the words"), (dict(B=2), "At 'B': Your result holds numbers; text are asked for.".replace("text are", "text is")),
    (dict(trust="3"), "At 'trust'"), (dict(B=None), "At 'B'"), (dict(B=["rate too low"]), "At 'B'"), (dict(D="just right"), "'D', which is not asked for")])
def test_a_judgement_in_a_dict(change, words):
    verdict = judge(WHICH, which, lambda: which() | change)
    assert verdict.outcome == ("passed" if words is None else "not yet") and (words or "Right") in verdict.message, verdict


@pytest.mark.parametrize("answer, words", [
    ({"a": "just right", "B": "just right", "C": "just right", "trust": 1}, "Did you mean 'A'?"),
    ({"A": "just right", "B": "just right", "C": "just right", "thrust": 1}, "Did you mean 'trust'?"),
    ({"A": "just right"}, "lacks 'B', 'C', 'trust'"), ({}, "something empty"), (None, "`return` missing"), ("rate too high", "a dict with the keys 'A', 'B'"),
    (["rate too high"], "a dict with the keys"), ([("A", 1)], "a dict with the keys"), ({"A"}, "a dict with the keys")])
def test_a_judgement_in_another_form(answer, words):
    verdict = judge(WHICH, which, lambda: answer)
    assert verdict.outcome == "not yet" and words in verdict.message, verdict


def test_a_judgement_says_how_much_of_it_is_right():
    assert dict(judge(WHICH, which, lambda: which() | dict(C="rate-too-high")).rows)["fulfilled"] == "3 of 4 requirements"
    assert judge(WHICH, which, which).message == "Right." and "inputs" not in str(judge(WHICH, which, lambda: which() | dict(C="hm")))
    assert judge(WHICH, which, lambda x: which()).outcome == "raised"


@pytest.mark.parametrize("answer, outcome", [("too high", "passed"), ("Too High", "passed"), ("to high", "not yet"), (["too high"], "not yet"), (3, "not yet"), (True, "not yet")])
def test_a_judgement_in_a_word(answer, outcome):
    def high(got):
        "says what is wrong with the rate"
        return got == "too high"
    assert judge(Exercise("w", **GIVEN | dict(cases=[()], accept=[high], diagnose={}, choices=("too high", "too low"))), lambda: "too high", lambda: answer).outcome == outcome


def test_a_judgement_as_a_set():
    def both(got):
        "names the files that leak"
        return set(got) == {"A", "C"}
    def ask(answer): return judge(Exercise("w", **GIVEN | dict(cases=[()], accept=[both], diagnose={}, choices=("A", "B", "C"))), lambda: {"A", "C"}, lambda: answer).outcome
    for right in {"A", "C"}, ["c", "a"], ("A", "C"), np.array(["A", "c"]): assert ask(right) == "passed", right
    for wrong in {"A"}, "AC", {"A": 1, "C": 1}, [["A", "C"]], {"A", "C", "D"}: assert ask(wrong) == "not yet", wrong


# memory, hints, solutions

def answer(k): return lambda x, k=k: eval(f"[{k}.] * len(x)")


def variants():
    "Different wrong answers"
    yield lambda x: [10.] * len(x)
    yield lambda x: [11.] * len(x)
    yield lambda x: [12.] * len(x)
    yield lambda x: [13.] * len(x)


def test_hints_and_solution_open_after_different_attempts():
    task, tries = from_module(lesson()).twos, variants()
    def stub(x): raise NotImplementedError
    for _ in range(4): task.check(stub)
    assert task.hint().notes == ("The first hint opens after 2 more different attempts.",)
    one = next(tries)
    for _ in range(4): assert "one more different attempt" in task.check(one).notes[0]
    assert not task.hint().message and not task.solution().code
    assert task.check(next(tries)).notes == ("A hint is open: `ex.twos.hint()`.",)
    for _ in range(3): assert task.hint().message == "1 of 2: Look at `np.full`."
    assert task.hint().notes == ("The next hint opens after one more different attempt.",)
    task.check(next(tries))
    assert task.hint().message.endswith("\n2 of 2: Use it.") and task.hint().notes == ("These are all hints there are.",)
    assert task.solution().code.startswith("def twos(x):") and "SOLUTION" not in task.solution().code and "np.full" in task.solution().code
    assert task.state() == ("not yet", 0, 3, 2)


def test_a_pass_opens_everything_and_stays():
    task = from_module(lesson()).twos
    assert task.check(twos).points == 3
    task.check(answer(7))
    assert task.state().status == "passed" and task.state().points == 3
    assert task.solution().code and task.hint().message


def test_best_hands_over_one_that_works_and_says_which(capsys):
    task = from_module(lesson()).twos
    for f in answer(7), None, 3, NASTY["raises at everything"]: assert task.best(f) is twos
    assert set(capsys.readouterr().out.splitlines()) == {"Going on with the reference solution, since yours does not pass yet."}
    assert task.state().status == "not attempted"  # only a pass goes into the record
    mine = lambda x: [2.] * len(x)  # noqa: E731
    assert task.best(mine) is mine and capsys.readouterr().out == "Going on with your twos.\n"
    assert task.state().status == "passed"


def test_attempts_are_lines_of_the_workspace(workspace, monkeypatch):
    (workspace / "lessons").mkdir()
    monkeypatch.chdir(workspace / "lessons")
    task = from_module(lesson()).twos
    task.check(answer(7)), task.check(twos), task.best(twos), task.hint()
    first, second, third = rows(workspace)
    assert (first["status"], second["status"], third["status"]) == ("not yet", "passed", "hint") and attempts._session == []
    assert second == dict(time=second["time"], lesson="made_up", exercise="twos", status="passed", points=3, of=3, code=digest(twos))
    assert second["time"].endswith("+00:00") and len(second["code"]) == 12 and int(second["code"], 16) >= 0


JUNK = [b"", b"{", b"null", b"[]", b"3", b'{"lesson": "made_up"}', b'{"lesson": 1, "exercise": "twos", "status": "passed", "points": 3, "code": "x"}',
        b'{"lesson": "made_up", "exercise": "twos", "status": "passed", "points": "all", "code": "x"}', b"\xff\xfe\x00", b"[" * 10**5,
        b'{"lesson": "made_up", "exercise": "twos", "status": "passed", "points": NaN, "code": "x"}',
        b'{"lesson": "made_up", "exercise": "twos", "status": ["passed"], "points": 3, "code": "x"}']


@pytest.mark.parametrize("end", [b"\n", b""], ids=["whole", "torn"])
def test_a_torn_or_foreign_line_is_skipped(workspace, end):
    file = workspace / ".fastcourse" / "attempts.jsonl"
    file.write_bytes(b"\n".join(JUNK) + end)
    task = from_module(lesson()).twos
    assert task.state() == ("not attempted", 0, 0, 0)
    assert not any("Warning" in note for note in task.check(answer(7)).notes)
    assert task.state() == ("not yet", 0, 1, 0)


def test_a_folder_without_settings_is_no_workspace(workspace):
    (workspace / "below" / ".fastcourse").mkdir(parents=True)
    assert attempts.nearest(workspace / "below") == workspace
    (workspace / "settings.ini").unlink()
    assert attempts.nearest(workspace / "below") is None


def test_many_writers_lose_nothing(workspace):
    file = workspace / ".fastcourse" / "attempts.jsonl"
    with ThreadPoolExecutor(8) as pool: list(pool.map(lambda i: attempts._append(file, dict(i=i, filler="x" * (i % 500))), range(800)))
    assert sorted(row["i"] for row in rows(workspace)) == list(range(800))


def test_two_notebooks_at_once_lose_nothing(workspace):
    code = "from fastcourse.course.attempts import keep\nfor i in range(300): assert keep(dict(i=i, me={}, filler='x' * i)) == ''"
    both = [subprocess.Popen([sys.executable, "-c", code.format(me)], cwd=workspace) for me in (1, 2)]
    assert [p.wait() for p in both] == [0, 0]
    assert sorted((row["me"], row["i"]) for row in rows(workspace)) == [(me, i) for me in (1, 2) for i in range(300)]


def test_lines_of_an_older_and_a_newer_version_count_as_far_as_they_are_understood(workspace):
    whole = dict(lesson="made_up", exercise="twos", status="not yet", points=0, of=3, code="1" * 12)
    lines = [whole, whole | dict(code="2" * 12, colour="blue", version=9), whole | dict(code="3" * 12, status="peer review"), whole | dict(exercise="gone"),
             {k: v for k, v in whole.items() if k != "of"} | dict(code="4" * 12), whole | dict(status="hint", depth=2)]
    file = workspace / ".fastcourse" / "attempts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = from_module(lesson()).twos
    assert task.state() == ("not yet", 0, 3, 1), "three different attempts: a status that nobody here knows is none; a key that nobody knows does no harm"
    task.check(twos)
    assert rows(workspace)[:6] == lines and task.state().status == "passed", "nothing that was there is written again or lost"


def test_points_never_exceed_what_an_exercise_is_worth_now(workspace):
    old = dict(lesson="made_up", exercise="twos", status="passed", points=10, of=10, code="1" * 12)
    (workspace / ".fastcourse" / "attempts.jsonl").write_text(json.dumps(old) + "\n")
    assert from_module(lesson()).twos.state().points == 3


def test_what_cannot_be_saved_counts_for_the_session_and_is_said(workspace):
    (workspace / ".fastcourse" / "attempts.jsonl").mkdir()
    task = from_module(lesson()).twos
    verdict = task.check(twos)
    assert verdict.outcome == "passed" and verdict.notes[0].startswith("Warning: this is not saved (")
    assert task.state().status == "passed" and str(verdict).count("Warning") == 1
    assert task.hint().message and task.solution().code


def test_a_disk_that_fills_up_within_a_line(workspace, monkeypatch):
    task, write = from_module(lesson()).twos, attempts.os.write
    with monkeypatch.context() as m:
        m.setattr(attempts.os, "write", lambda fd, data: write(fd, data[:20]))
        assert "Warning: this is not saved (No space" in task.check(answer(7)).notes[0]
    assert task.state().attempts == 1
    task.check(twos)  # there is room again: the line that was cut is closed, this one is whole
    lines = (workspace / ".fastcourse" / "attempts.jsonl").read_bytes().strip(b"\n").split(b"\n")
    assert len(lines) == 2 and len(lines[0]) == 19 and json.loads(lines[1])["status"] == "passed"


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert from_module(lesson()).twos.check(twos).outcome == "passed"


def test_the_digest_sees_code_only():
    def same_names(source):
        space = {}
        exec(source, space)
        return space["f"]
    texts = ["def f(x): return x", "def f(x): return x + 1", "def f(x): return x + 2", "def f(x): return [v + 1 for v in x]", "def f(x): return [v + 2 for v in x]"]
    assert len({digest(same_names(t)) for t in texts}) == len(texts)
    assert digest(same_names(texts[1])) == digest(same_names("def f(x):\n    # more\n    return x+1"))
    for odd in abs, np.add, Agrees, Agrees(), from_module(lesson()).twos.check, 3: assert len(digest(odd)) == 12


# lessons

def test_names_that_are_not_there_are_answered_with_those_that_are(packaged):
    with pytest.raises(FastcourseError, match="twos"): exercises("lr_finding").treys
    with pytest.raises(FastcourseError, match="1 lr_finding"): exercises("knitting")
    assert not hasattr(exercises(1), "treys")


def test_a_lesson_without_its_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastcourse.lessons.lr_finding", None)
    with pytest.raises(FastcourseError, match="no module"): exercises("lr_finding")


def test_the_profile_decides_what_is_shown_not_what_runs(packaged, workspace):
    ex = exercises(1)
    assert dir(ex) == ["twos"] and ex.radio.check(twos) and "radio" not in repr(ex)
    assert [e.exercise.id for e in exercises(1, workspace.parent)] == ["twos", "radio"]  # the packaged settings: radiology
    assert repr(ex).splitlines()[1].split() == "twos 5 0 of 3 not attempted".split()


def test_progress_reads_the_folder_it_is_given(packaged, workspace, tmp_path_factory, monkeypatch):
    exercises(1).twos.check(answer(7)), exercises(1).twos.check(twos), exercises(1).twos.hint()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    def first(rows): return [row for row in rows if row.lesson == "lr_finding"]
    assert first(progress(workspace)) == [("lr_finding", "twos", "passed", 3, 3, 2, 1)]
    assert [row.state for row in first(progress())] == ["not attempted"] * 2


def test_homework_is_checked_by_name(packaged):
    homework = types.ModuleType("lr_finding")
    assert [(v.exercise, v.outcome) for v in check_module(1, homework)] == [("twos", "not attempted"), ("radio", "not attempted")]
    assert "no function `twos` in lr_finding" in str(check_module(1, homework)[0])
    homework.twos, homework.radio = twos, 5
    assert [v.outcome for v in check_module("lr_finding", homework)] == ["passed", "not attempted"]


def test_a_missing_function_of_a_profile_s_part_says_where_it_is_and_other_profiles_are_not_asked(packaged, workspace):
    homework = types.ModuleType("lr_finding")
    homework.twos = twos
    assert [v.exercise for v in check_module(1, homework)] == ["twos"], "this folder's profile is trading"
    (workspace / "settings.ini").write_text("[fastcourse]\nprofile = radiology\n")
    assert [v.outcome for v in check_module(1, homework)] == ["passed", "not attempted"]
    assert "part for radiology: `fastcourse start`" in check_module(1, homework)[1].message


@pytest.mark.parametrize("changed", [dict(right={"a": 3}), dict(wrong={"a": twos}), dict(choices="too high"), dict(cases=[]), dict(accept=[]), dict(cases=[5]), dict(accept=[lambda got, x: True]), dict(profile="knitting")])
def test_a_declaration_that_cannot_work_is_refused(changed):
    with pytest.raises(FastcourseError, match="'twos'"): Exercise("twos", **GIVEN | changed)


def test_an_exercise_needs_its_reference():
    with pytest.raises(FastcourseError, match="no function 'twos'"): from_module(lesson(twos=TWOS))


def anything(got, x):
    "is there"
    return True


@pytest.mark.parametrize("changed, reference, problem", [
    ({}, twos, None),
    ({}, lambda x: 3. * np.ones(len(x)), "the reference does not pass"),
    (dict(choices=("a",), picture=lambda *a: Drawing()), lambda x: 1 / 0, "the reference does not pass: It stopped with ZeroDivisionError"),
    (dict(wrong={"fine": (twos, "x")}), twos, "the wrong answer 'fine' passes"),
    (dict(wrong={"fine": (twos, "x")}), twos, "of at least 3 wrong answers, 1 is declared"),
    (dict(right={}), twos, "a second right answer, written independently, is missing"),
    (dict(right={"a list": lambda x: [3.] * len(x)}), twos, "the right answer 'a list' does not pass: These are threes."),
    (dict(right={"copy": lambda values: np.full(len(values), 2.0)}), twos, "the right answer 'copy' is a copy of another"),
    (dict(picture=lambda got, wanted, x: got / wanted / 0 and 1 / 0), twos, "the picture fails for the wrong answer 'threes': "),
    (dict(picture=lambda *a: Silent()), twos, "the picture for the wrong answer 'threes' says nothing in words"),
    (dict(picture=lambda *a: Drawing()), twos, None),
    (dict(wrong={"odd": (answer(3), "fours")}), twos, "without 'fours'"),
    (dict(hints=[]), twos, "there is no hint"),
    (dict(accept=[anything], wrong={}), lambda x: None, "returning None passes"),
    (dict(accept=[anything], wrong={}), lambda x: 5, "returning 0 passes"),
    (dict(accept=[anything], wrong={}), lambda x: [], "returning [] passes"),
    (dict(accept=[anything], wrong={}), twos, "returning its first argument passes")])
def test_each_gate_closes(changed, reference, problem):
    found = gates(from_module(lesson(Exercise("twos", **GIVEN | changed), twos=reference)))
    assert found == [] if problem is None else any(problem in line for line in found), found


def test_gates_look_at_every_profile():
    assert "no hint" in gates(from_module(lesson(Exercise("twos", **GIVEN | dict(profile="trading", hints=[]))), profile="radiology"))[0]


def test_the_reference_must_be_choosable():
    assert not any("choices" in x for x in gates(from_module(lesson(WHICH, which=which))))
    found = gates(from_module(lesson(replace(WHICH, choices=("rate too high", "rate too low")), which=which)))
    assert any("the reference says 'just right', which is not among the choices" in x for x in found)


def test_a_report_counts_what_is_as_it_should_be():
    e = Exercise("twos", **GIVEN | dict(right={"a list": GIVEN["right"]["a list"], "off": answer(3)}, wrong=GIVEN["wrong"] | {"fine": (twos, "x")}))
    found = report(from_module(lesson(e)).twos)
    assert (found.right, found.wrong, len(found.problems)) == ((2, 3), (3, 4), 2)
    assert (found.mutants.tried, found.mutants.killed) == (4, 4)  # 1.0, 3.0, the arguments' order, no return


# cards

class Balanced(HTMLParser):
    def __init__(self): super().__init__(); self.open, self.text = [], ""
    def handle_starttag(self, tag, attrs): self.open.append(tag)
    def handle_endtag(self, tag): assert self.open.pop() == tag
    def handle_data(self, data): self.text += data


@pytest.mark.parametrize("f", [twos, answer(7), lambda x: f"</div><script>{x}</script>", lambda x: 1 / 0, None, lambda x: "a*b*c `d"])
def test_a_card_is_sound_html_and_plain_ascii(f):
    bundle = from_module(lesson()).twos.check(f)._repr_mimebundle_()
    page = Balanced()
    page.feed(bundle["text/html"])
    assert page.open == [] and "<script" not in bundle["text/html"] and 'role="status"' in bundle["text/html"] and "aria-label=" in bundle["text/html"]
    assert "a*b*c `d" not in bundle["text/plain"] or "a*b*c `d" in page.text
    assert bundle["text/plain"].isascii() and "#fff" not in bundle["text/html"] and "background:#" not in bundle["text/html"]
    assert "second paragraph" not in page.text


def luminance(red, green, blue):
    "WCAG 2's relative luminance of a colour with channels from 0 to 1"
    light = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def colour(css, name, ground=(0., 0., 0.)):
    "A theme's variable as channels, laid over a ground where it is half transparent"
    value = re.search(rf"--jp-{name}: *([^;}}]+)", css)[1].strip()
    if value in ("white", "#fff"): return (1., 1., 1.)
    if value.startswith("#"): return tuple(int(c, 16) / 15 for c in value[1:])
    *rgb, alpha = map(float, re.findall(r"[\d.]+", value))
    return tuple(c / 255 * alpha + g * (1 - alpha) for c, g in zip(rgb, ground, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark", "dark-high-contrast"])
def test_a_card_s_text_is_readable_in_jupyterlab_s_themes(theme):
    "All text is in the theme's first or second content colour, on its ground; 4.5 to 1 is what WCAG 2 asks for"
    folder = Path(sys.prefix) / "share" / "jupyter" / "lab" / "themes" / "@jupyterlab" / f"theme-{theme}-extension"
    if not folder.is_dir(): pytest.skip("JupyterLab is elsewhere")
    css = "".join(f.read_text() for f in folder.glob("*.css"))
    html = shown(lambda *a: Drawing())._repr_mimebundle_()["text/html"]
    texts = set(re.findall(r"(?<![-\w])color:var\(--jp-([\w-]+)", html)) - {"warn-color1"}  # the sign: its meaning stands in the title
    assert texts == {"content-font-color1", "content-font-color2"}
    ground = colour(css, "layout-color0")
    for text in texts:
        lighter, darker = sorted((luminance(*c) for c in (colour(css, text, ground), ground)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5
