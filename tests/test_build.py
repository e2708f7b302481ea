"""The student's notebook from the lesson's source: nothing of a solution, everything else."""
import importlib.util
import json
import shutil

import pytest
from conftest import ROOT, cell, fastcourse, notebook, tree, write_notebook
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fastcourse.course import build
from fastcourse.course.build import BEGIN, END, BuildError, strip_solutions, student_version
from fastcourse.course.cli import app

SOLVED = f'''#| export
def lr_range(a, b, n):
    "Rates with equal ratios"
    t = np.arange(n)
    {BEGIN}
    return a * (b / a) ** (t / (n - 1))
    {END}
'''


def lesson(*more): return notebook("#| default_exp lessons.lr_finding", SOLVED, *more)


def test_stub_and_solution_differ_between_the_markers_only():
    assert strip_solutions(SOLVED).splitlines() == [*SOLVED.splitlines()[:4], '    raise NotImplementedError("lr_range: your turn")']


@pytest.mark.parametrize("source, name, indent", [
    (f"class A:\n    def method(self):\n        {BEGIN}\n        return 1\n        {END}", "method", 8),
    (f"def outer():\n    def inner():\n        {BEGIN}\n        return 1\n        {END}\n    return inner", "inner", 8),
    (f"async def f():\n  {BEGIN}\n  return 1\n  {END}", "f", 2),
    (f"def f(x):\n\tif x:\n\t\t{BEGIN}\n\t\treturn 1\n\n\t\t# why\n\t\t{END}\n\treturn 2", "f", None),
    (f"@decorated\ndef f(\n    x,\n):\n    {BEGIN}\n    y = '''\ntext\n'''\n    return y\n    {END}", "f", 4),
])
def test_the_stub_names_its_function_and_keeps_the_indentation(source, name, indent):
    stub = strip_solutions(source)
    (line,) = [line for line in stub.splitlines() if "NotImplementedError" in line]
    assert f'"{name}: your turn"' in line
    assert line[:len(line) - len(line.lstrip())] == ("\t\t" if indent is None else " " * indent)
    compile(stub, "stub", "exec")


def test_two_solutions_in_one_cell_are_both_taken_out():
    both = f"def f():\n    {BEGIN}\n    return 11 * 11\n    {END}\n\ndef g():\n    {BEGIN}\n    return 12 * 12\n    {END}\n"
    assert [line.strip() for line in strip_solutions(both).splitlines() if "raise" in line] == [
        'raise NotImplementedError("f: your turn")', 'raise NotImplementedError("g: your turn")']


@pytest.mark.parametrize("source, words", [
    (f"def f():\n    {BEGIN}\n    return 1", "pair up"),
    (f"def f():\n    return 1\n    {END}", "pair up"),
    (f"def f():\n    {END}\n    return 1\n    {BEGIN}", "pair up"),
    (f"def f():\n    {BEGIN}\n    {BEGIN}\n    return 1\n    {END}\n    {END}", "pair up"),
    (f"x = 1\n{BEGIN}\ny = 2\n{END}", "no function"),
    (f"class A:\n    {BEGIN}\n    y = 2\n    {END}", "no function"),
    (f"def f():\n    {BEGIN}\n    {END}\n    return 1", "no function"),
    (f"def f():\n    {BEGIN}\n    y = 2\nz = 3\n{END}", "no function"),
    (f"def f(:\n    {BEGIN}\n    return 1\n    {END}", "not Python"),
    (f"def f():\n    x = 1\n        {BEGIN}\n    return 1\n    {END}", "not Python"),
])
def test_what_cannot_be_taken_out_is_refused_with_the_cell(source, words):
    with pytest.raises(BuildError, match=f"Cell 3: .*{words}") as e: student_version(lesson(source))
    assert e.value.next


@pytest.mark.parametrize("leak", [
    cell("rates = a * (b / a) ** (t / (n - 1))", "x"),
    cell("show(a*(b/a)**(t/(n-1)))", "x"),
    cell("# return a * (b / a) ** (t / (n - 1))", "x"),
    cell("The rates are `a * (b / a) ** (t / (n - 1))`.", "x", cell_type="markdown"),
])
def test_a_solution_s_line_anywhere_else_is_refused(leak):
    with pytest.raises(BuildError, match="still in the student's notebook"): student_version(lesson(leak))


def test_plain_lines_are_no_leak():
    plain = "    total = 0\n    for x in xs:\n        total += x\n    return total"
    source = f"def f(xs):\n    {BEGIN}\n{plain}\n    {END}"
    assert student_version(lesson(source, "total = 0\nfor x in xs:\n    total += x\nf(total)"))


@given(st.lists(st.sampled_from(["story", "code", "teacher", "hidden", "late teacher"]), max_size=8))
def test_every_other_cell_is_as_the_author_wrote_it(kinds):
    make = {"story": lambda i: cell(f"Story {i}", f"id{i}", cell_type="markdown"), "code": lambda i: cell(f"x = {i}", f"id{i}", outputs=["old"], execution_count=i),
            "teacher": lambda i: cell(f"#| teacher\nsecret = {i}", f"id{i}"), "hidden": lambda i: cell(f"#| hidden\nsecret = {i}", f"id{i}"),
            "late teacher": lambda i: cell(f"#| export\n#| teacher\nsecret = {i}", f"id{i}")}
    source = lesson(*[make[kind](i) for i, kind in enumerate(kinds)])
    before = json.dumps(source)
    mine = student_version(source)
    assert json.dumps(source) == before
    assert "secret" not in json.dumps(mine)
    assert [(c["id"], c["source"]) for c in mine["cells"][2:]] == [(c["id"], c["source"]) for c in source["cells"][2:] if "secret" not in c["source"]]
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in mine["cells"] if c["cell_type"] == "code")
    assert mine["cells"][0]["source"] == "#| default_exp lr_finding"


@pytest.mark.parametrize("cells", [["x = 1"], ["#| default_exp a.b", "#| default_exp a.c"]])
def test_a_lesson_needs_one_module_name(cells):
    with pytest.raises(BuildError, match="default_exp"): student_version(notebook(*cells))


def test_a_part_s_heading_must_be_right():
    assert student_version(lesson(cell("## Radiology: films", "x", cell_type="markdown")))
    with pytest.raises(BuildError, match="Cell 3: .*part"): student_version(lesson(cell("## Radiology \u2013 films", "x", cell_type="markdown")))


@pytest.fixture
def repository(tmp_path):
    "The least that is a repository of the course, with one lesson, built"
    write_notebook(tmp_path / "lessons" / "01_lr_finding.ipynb", "#| default_exp lessons.lr_finding", SOLVED)
    write_notebook(tmp_path / "nbs" / "index.ipynb", cell("# Title", cell_type="markdown"), "#| hide\nsecret", "1 + 1")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "fastcourse"\n')
    (tmp_path / "settings.ini").write_text("[fastcourse]\nseed = 7\n")
    (tmp_path / "fastcourse").mkdir()
    build.build(tmp_path)
    return tmp_path


def test_building_again_changes_nothing(repository):
    before = tree(repository)
    assert build.check_build(repository) == [] and build.build(repository) == [] and tree(repository) == before
    assert (repository / "README.md").read_text() == "# Title\n\n```python\n1 + 1\n```\n"


@pytest.mark.parametrize("spoil", ["fastcourse/student/01_lr_finding.ipynb", "fastcourse/settings.ini", "README.md"])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_every_stale_file_is_named_and_mended(repository, spoil, how):
    before = tree(repository)
    (repository / spoil).unlink() if how == "missing" else (repository / spoil).write_text("old")
    (problem,) = build.check_build(repository)
    assert spoil in problem
    assert build.build(repository) == [repository / spoil] and tree(repository) == before


def test_the_command_says_what_is_stale_with_exit_code_1(repository, monkeypatch):
    left = write_notebook(repository / "fastcourse" / "student" / "09_gone.ipynb", "x = 1")
    done = fastcourse("build", "--check", cwd=repository / "lessons")
    assert done.returncode == 1 and str(left) in done.stderr and "fastcourse build" in done.stderr
    monkeypatch.chdir(repository / "lessons")
    assert CliRunner().invoke(app, ["build"]).exit_code == 0 and not left.exists()
    assert CliRunner().invoke(app, ["build", "--check"]).exit_code == 0


def test_the_repository_s_own_are_up_to_date(): assert build.check_build(ROOT) == []


def test_a_module_without_a_notebook_is_found(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("made_again", ROOT / ".ci" / "tree.py")
    made_again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made_again)
    assert made_again.without_notebook() == []
    for folder in "nbs", "lessons", "fastcourse": shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    (tmp_path / "nbs" / "settings.ipynb").unlink()
    monkeypatch.setattr(made_again, "ROOT", tmp_path)
    assert made_again.without_notebook() == ["fastcourse/settings.py"]
