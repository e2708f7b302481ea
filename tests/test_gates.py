"""What must hold before a lesson is released: the gates close on faults that were put in, and stand open for the course's own lessons."""
import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, cell, notebook
from typer.testing import CliRunner

from fastcourse.course import gates, report
from fastcourse.course.cli import app
from fastcourse.course.judge import Exercise
from fastcourse.course.mutants import mutants, score
from fastcourse.settings import load_settings

LESSONS = load_settings(ROOT).lessons


# mutants

def climb(x):
    "The running sum up to the first value above 2"
    total, i, out = 0, 0, []
    ### BEGIN SOLUTION
    while i < len(x) and x[i] <= 2:
        total += x[i]
        out.append(total)
        i += 1
    ### END SOLUTION
    return out


def sums(got, x):
    "each value is the sum of those up to it, and the last stands before one above 2"
    n = next((i for i, v in enumerate(x) if v > 2), len(x))
    return list(got) == np.cumsum(x[:n]).tolist()


CLIMB = Exercise("climb", minutes=5, points=1, cases=[([1, 2, 1, 3, 1],), ([2, 0.5],)], accept=[sums], diagnose={}, wrong={}, hints=["Add."])


def test_mutants_change_one_thing_between_the_markers_only():
    found = list(mutants(climb))
    assert {m.line for m in found} == {5, 6, 7, 8}
    changes = {m.change for m in found}
    assert {"i < len(x) -> i <= len(x)", "x[i] <= 2 -> x[i] < 2", "2 -> 3", "leave out: i += 1", "i += 1 -> i -= 1", "1 -> 2"} <= changes
    assert any("and" in c.split(" -> ")[0] and "or" in c.split(" -> ")[1] for c in changes if " -> " in c)
    assert len(changes) == len(found)
    assert climb([1, 2, 1, 3, 1]) == [1, 3, 4], "the function itself is as it was"


def test_endless_mutants_end_and_all_are_noticed():
    start = time.monotonic()
    found = score(CLIMB, climb)
    assert found.survivors == () and found.killed == found.tried == len(list(mutants(climb)))
    assert time.monotonic() - start < 10  # two of them never end: a hang would be noticed here, a slow machine not


def test_survivors_are_named_and_may_be_declared_equivalent():
    def some(got, x):
        "is not longer than x"
        return len(got) <= len(x)
    careless = replace(CLIMB, accept=[some])
    names = [m.change for m in score(careless, climb).survivors]
    assert "total += x[i] -> total -= x[i]" in names and "i < len(x) -> i <= len(x)" not in names  # which raises
    found = score(replace(careless, equivalent=("total += x[i] -> total -= x[i]",)), climb)
    assert found.equivalent == 1 and [m.change for m in found.survivors] == [n for n in names if n != "total += x[i] -> total -= x[i]"]
    assert found.tried == found.killed + found.equivalent + len(found.survivors)


def words():
    "Judges two curves"
    return {"A": "too high", "B": "too low"}


def test_a_judgement_s_words_are_exchanged():
    assert {m.change for m in mutants(words)} >= {"'too high' -> 'A'", "leave out: return {'A': 'too high', 'B': 'too low'}"}


@pytest.mark.parametrize("f", [np.add, len, type("C", (), {"__call__": lambda self, x: x})()])
def test_what_has_no_source_has_no_mutants(f): assert list(mutants(f)) == []


def test_a_reference_that_does_not_pass_has_no_score():
    assert score(replace(CLIMB, accept=[never]), climb).tried == 0


def never(got, x):
    "what nobody can do"
    return False


def test_a_slow_reference_is_tried_with_fewer_mutants():
    def slow(x):
        time.sleep(.02)
        return climb(x)
    assert score(CLIMB, slow, seconds=.01).tried == len(list(mutants(slow))) == 4, "never fewer than ten, where there are ten"
    assert score(CLIMB, climb, seconds=1e-9).tried == 10 < len(list(mutants(climb)))


# lessons

@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda x: x.name)
def test_the_course_s_own_lessons(lesson, request):
    assert report.gates(lesson.name) == []
    assert gates.lesson_gates(lesson, ROOT, run=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda x: x.name)
def test_the_students_notebooks_run_from_top_to_bottom_before_anything_is_solved(lesson, tmp_path):
    "For one of the profiles, in turn with the lessons; `fastcourse build gates` runs them all"
    from fastcourse.course.workspace import create
    profiles = gates.profiles_of(lesson, ROOT)
    profile = profiles[lesson.number % len(profiles)]
    assert gates._run(lesson, create(tmp_path / profile, profile), profile) == []


@pytest.fixture
def repository(tmp_path):
    "A copy of what the gates read, with lesson 1 to spoil; `change` is given its cells"
    for part in "lessons", "fastcourse/student": shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "settings.ini", tmp_path)
    def spoil(change, built=True):
        from fastcourse.course import build
        file = tmp_path / "lessons" / LESSONS[0].notebook
        made = build.read_notebook(file)
        change(made["cells"])
        file.write_text(build.notebook_text(made))
        if built: build.write_students(tmp_path / "lessons", tmp_path / "fastcourse" / "student")
        return gates.lesson_gates(LESSONS[0], tmp_path, run=False)
    return spoil


@pytest.fixture
def no_process(monkeypatch): monkeypatch.setattr(gates, "_fresh", lambda *args: [])


def solution(cells): return next(c for c in cells if gates.BEGIN in c["source"] and "def lr_range" in c["source"])


@pytest.mark.slow
def test_a_starter_that_passes_and_a_sabotage_that_does_are_found_in_a_fresh_process(repository):
    def keep_the_solution(cells):
        own = solution(cells)
        own["source"] = "\n".join(line for line in own["source"].splitlines() if "### " not in line)
    found = repository(keep_the_solution)
    assert [x for x in found if "starter" in x and "lr_range is 'passed'" in x] and [x for x in found if "sabotaged" in x and "lr_range is 'passed'" in x]


@pytest.mark.slow
def test_a_reference_that_needs_a_cell_that_is_not_exported_is_found_in_a_fresh_process(repository):
    def lose_an_import(cells):
        own = next(c for c in cells if "import numpy as np" in c["source"])
        own["source"] = own["source"].replace("#| export\n", "", 1)
    assert [x for x in repository(lose_an_import) if "solved" in x]


@pytest.mark.parametrize("change, words", [
    (lambda cells: cells.insert(3, cell(solution(cells)["source"].split(gates.BEGIN)[1].split(gates.END)[0].strip().removeprefix("return "), "leak")), "still in the student"),
    (lambda cells: cells.insert(3, cell("#| export\ndef uses(x): return films(x)", "uses")), "for radiology, the script uses films, which it does not define"),
    (lambda cells: cells.pop(next(i for i, c in enumerate(cells) if "def main(" in c["source"])), "has no function main"),
    (lambda cells: cells.insert(3, cell("## Trading - costs", "near", cell_type="markdown")), "not quite"),
    (lambda cells: None, None)])
def test_what_cannot_be_built_is_a_problem(repository, no_process, change, words):
    found = repository(change, built=False)
    assert found == [] if words is None else words in found[0], found


def test_a_student_s_notebook_that_is_out_of_date(repository, no_process):
    found = repository(lambda cells: cells.insert(3, cell("1 + 1", "new")), built=False)
    assert len(found) == 1 and "not up to date" in found[0]


def test_minutes_that_are_too_long_or_missing(tmp_path):
    (tmp_path / "lessons").mkdir()
    assert "not measured" in gates._minutes(LESSONS[0], tmp_path)[0]
    for measured, n in (LESSONS[0].minutes, 0), (LESSONS[0].minutes + .1, 1):
        (tmp_path / "lessons" / "minutes.json").write_text(json.dumps({"minutes": {LESSONS[0].name: {"measured": measured}}}))
        assert len(gates._minutes(LESSONS[0], tmp_path)) == n
    assert "its exercises for radiology take" in gates._minutes(replace(LESSONS[0], minutes=1), tmp_path)[-2]


def test_a_function_for_one_profile_in_the_notebook_of_the_other(monkeypatch):
    from test_exercise import GIVEN, lesson, twos

    from fastcourse.course.exercise import from_module
    monkeypatch.setattr(gates, "exercises", lambda name: from_module(lesson(Exercise("twos", **GIVEN | dict(profile="trading")), twos=twos)))
    part, function = cell("## Trading: costs", "p", cell_type="markdown"), cell("def twos(x):\n    pass", "f")
    assert gates._misplaced(LESSONS[0], notebook(part, function)) == []
    assert "also in the notebook for radiology" in gates._misplaced(LESSONS[0], notebook(function, part))[0]


@pytest.mark.parametrize("outcomes, problems", [
    (dict(starter="not attempted", solved="passed", sabotaged="not yet"), 0), (dict(starter="not attempted", solved="passed", sabotaged="raised"), 0),
    (dict(starter="passed", solved="passed", sabotaged="passed"), 2), (dict(starter="not attempted", solved="not yet", sabotaged="not yet"), 1),
    (dict(starter="not attempted", solved="passed", sabotaged="checker failed"), 1)])
def test_every_version_must_come_out_as_it_should(monkeypatch, outcomes, problems):
    ids = [b.exercise.id for b in gates.exercises(1)._all if b.exercise.profile in (None, "trading")]
    monkeypatch.setattr(gates, "_outcomes", lambda *args: {name: {ids[0]: x, **dict.fromkeys(ids[1:], sorted(gates._MUST[name])[0])} for name, x in outcomes.items()})
    assert len(gates._fresh(LESSONS[0], {}, None, "trading")) == problems
    monkeypatch.setattr(gates, "_outcomes", lambda *args: {"starter": "no result", "solved": {}, "sabotaged": {}})
    assert len(gates._fresh(LESSONS[0], {}, None, "trading")) == 3, "no result is not a pass, and neither is a check of nothing"


# the command

def test_the_command_prints_a_row_an_exercise_and_ends_with_1_where_something_is_wrong(monkeypatch, no_process):
    monkeypatch.chdir(ROOT)
    fine = CliRunner().invoke(app, ["build", "gates", "1", "--no-run"])
    assert "lr_range" in fine.stdout and "mutants" in fine.stdout
    monkeypatch.setattr(gates, "_minutes", lambda *args: ["takes too long"])
    done = CliRunner().invoke(app, ["build", "gates", "lr_finding", "--no-run"])
    assert done.exit_code == 1 and "lr_finding: takes too long." in done.stderr
    assert CliRunner().invoke(app, ["build", "gates", "99"]).exit_code != 0
