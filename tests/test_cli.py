"""The command line: light, clear, and never with a traceback."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from conftest import CLI, ROOT, cell, fastcourse, tree, write_notebook
from typer.testing import CliRunner

from fastcourse.course.cli import app
from fastcourse.course.lab import is_free
from fastcourse.settings import load_settings
from fastcourse.train import cards

HEAVY = {"torch", "torchvision", "numpy", "pandas", "matplotlib", "nbformat", "nbclient", "nbdev", "jupyterlab", "jupyter_client", "IPython", "accelerate"}


@pytest.mark.parametrize("code", [
    "import fastcourse", "import fastcourse.settings", "import fastcourse.course.cli, fastcourse.course.workspace, fastcourse.course.homework",
    "sys.argv[1:] = ['--help']; from fastcourse.course.cli import main; main()",
    "sys.argv[1:] = ['data']; from fastcourse.course.cli import main; main()",
])
def test_what_should_be_light_imports_nothing_heavy(tmp_path, code):
    code = f"import sys, atexit; atexit.register(lambda: print('loaded', *sys.modules)); {code}"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split("loaded ")[-1].split())


def refused(done, *words):
    "Exit code 2 and one line that holds these words"
    assert done.returncode == 2, done
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("fastcourse: ") and all(word in line for word in words), line


def test_without_a_workspace(tmp_path):
    for command in ["run", "1"], ["check", "1"], ["homework", "1"], ["progress"]:
        refused(fastcourse(*command, cwd=tmp_path), "no course folder", "fastcourse start")


def test_an_unknown_lesson(course):
    for command in "run", "check", "homework":
        refused(fastcourse(command, "99", cwd=course.folder), "no lesson '99'", "1 lr_finding")


def test_folders_that_will_not_do(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(fastcourse("start", "file", cwd=tmp_path), "is a file", "fastcourse start FOLDER")
    refused(fastcourse("start", "file/below", cwd=tmp_path), "cannot be used")
    refused(fastcourse("start", ROOT, cwd=tmp_path), "own source")
    refused(fastcourse("start", "new", "--profile", "banking", cwd=tmp_path), "banking", "radiology, trading")
    if Path("/proc").is_dir(): refused(fastcourse("start", "/proc/course", cwd=tmp_path), "cannot be used")
    assert tree(tmp_path) == {"file": b"mine"}


def test_a_wrong_setting_is_named_with_file_and_line(course):
    (course.folder / "settings.ini").write_text("[fastcourse]\n\nseed = seven\n")
    refused(fastcourse("progress", cwd=course.lessons), str(course.folder / "settings.ini"), "line 3", "seed")


def test_a_port_that_is_taken(course):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused(fastcourse("start", "--port", port, "--no-browser", cwd=course.folder), f"Port {port} is taken", "--port")


def test_without_jupyter(course):
    refused(fastcourse("start", "--no-browser", cwd=course.folder, code=f"import sys; sys.modules['jupyterlab'] = None; {CLI}"),
            "JupyterLab is not installed", "pip install jupyterlab")


@pytest.mark.parametrize("arguments", [["strat"], ["run"], ["start", "--port", "0"], ["start", "--port", "many"], ["data", "mnist"]])
def test_wrong_usage(tmp_path, arguments):
    done = fastcourse(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and "Error" in done.stderr and "Traceback" not in done.stderr


def test_a_damaged_or_missing_notebook(course):
    file = course.lessons / "01_lr_finding.ipynb"
    file.write_text("{ half")
    for command in "run", "check", "homework": refused(fastcourse(command, "1", cwd=course.folder), "is not a notebook")
    file.unlink()
    for command in "run", "check", "homework": refused(fastcourse(command, "1", cwd=course.folder), "is missing", "fastcourse start")


EXP = "#| default_exp lr_finding"
MAIN = "#| export\ndef main(): pass"


@pytest.mark.parametrize("cells, words", [
    ([EXP, "#| export\n%matplotlib inline", MAIN], ["cell 2 (`%matplotlib inline`)", "notebook only"]),
    ([EXP, "#| export\nfiles = !ls", MAIN], ["cell 2", "notebook only"]),
    ([EXP, "#| export\nget_ipython().system('ls')", MAIN], ["cell 2", "get_ipython"]),
    ([EXP, "%matplotlib inline", "#| export\ndef f(:\n    pass", MAIN], ["cell 3", "def f(:"]),
    ([EXP, "#| export\nx = 1"], ["no function main"]),
    (["#| default_exp other", MAIN], ["#| default_exp lr_finding"]),
    ([EXP, "#| export\n1 / 0", MAIN], ["cannot be checked: ZeroDivisionError", "at `1 / 0`"]),
    ([EXP, "#| export\nimport sys; sys.exit(0)", MAIN], ["cannot be checked: SystemExit"]),
    ([EXP, "#| export\nimport os; os._exit(0)", MAIN], ["ended without a result (exit code 0)"]),
])
def test_a_notebook_that_is_no_module(course, cells, words):
    write_notebook(course.lessons / "01_lr_finding.ipynb", *cells)
    refused(fastcourse("check", "1", cwd=course.folder), *words)
    assert not list(course.homework.iterdir()), "checking leaves nothing in homework/"


@pytest.mark.slow
@pytest.mark.parametrize("cell, words", [
    ("# why\n1 / 0", "cell 2 (`1 / 0`): ZeroDivisionError: division by zero"),
    ("import os; os._exit(1)", "cell 2 (`import os; os._exit(1)`): the Python process died"),
])
def test_a_lesson_that_fails_is_saved_up_to_there(course, cell, words):
    write_notebook(course.lessons / "01_lr_finding.ipynb", "print('before')", cell, "print('after')")
    done = fastcourse("run", "1", cwd=course.folder)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
    outputs = [c["outputs"] for c in json.loads((course.folder / "executed" / "01_lr_finding.ipynb").read_text())["cells"]]
    assert "before" in str(outputs[0]) and outputs[2] == []


DOUBLE = """#| export
def {name}(x):
    "Twice x"
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION"""
DECLARED = """#| export
#| teacher
from fastcourse import Exercise
def is_twice(got, x):
    "is twice x"
    return got == 2 * x
{name}_exercise = Exercise("{name}", minutes=1, points=1, cases=[(3,), (-1,)], accept=[is_twice], diagnose={{}}, hints=["Add x to x."],
    profile={profile!r}, right=dict(added=lambda x: x + x), wrong=dict(square=(lambda x: x * x, "twice"), same=(lambda x: x, "twice"), half=(lambda x: x / 2, "twice")))"""


@pytest.fixture
def two_profiles(tmp_path):
    "A repository with a small lesson 1, which has a core and a part for each profile; returns how to call it"
    from nbdev.export import nb_export

    from fastcourse.course.build import write_students
    def exercise(name, profile=None): return [DOUBLE.format(name=name), f"ex.{name}.check({name})", DECLARED.format(name=name, profile=profile)]
    def heading(text): return cell(text, text, cell_type="markdown")
    cells = ["#| default_exp lessons.lr_finding", "from fastcourse import exercises\nex = exercises(1)", *exercise("core"), heading("## Radiology: films"),
             *exercise("films", "radiology"), heading("## Trading: costs"), *exercise("costs", "trading"), heading("## The end"), "#| export\ndef main(): pass"]
    package = tmp_path / "fastcourse"
    for folder in "fastcourse", "nbs": (tmp_path / folder).mkdir()
    for file in "settings.ini", "pyproject.toml": shutil.copy(ROOT / file, tmp_path)
    for part in (ROOT / "fastcourse").iterdir():
        if part.name not in ("lessons", "student", "__pycache__", "settings.ini"): (package / part.name).symlink_to(part)
    only_lesson_1 = re.sub(r"(?m)^(?!lr_finding)\w+ = \d+\n", "", (ROOT / "settings.ini").read_text().partition("[lessons]")[2])
    for file in tmp_path / "settings.ini", package / "settings.ini":
        file.write_text("[lessons]".join([(ROOT / "settings.ini").read_text().partition("[lessons]")[0], only_lesson_1]))
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "minutes.json").write_text('{"minutes": {"lr_finding": {"measured": 1}}}')
    source = write_notebook(tmp_path / "lessons" / "01_lr_finding.ipynb", *cells)
    nb_export(source, lib_path=package)
    (package / "lessons" / "__init__.py").touch()
    write_students(source.parent, package / "student")
    return lambda *arguments, cwd: fastcourse(*arguments, cwd=cwd, PYTHONPATH=str(package.parent))


@pytest.mark.slow
def test_a_profile_s_notebook_is_laid_checked_run_and_exchanged(two_profiles, tmp_path):
    assert two_profiles("start", "w", "--no-lab", "--profile", "trading", cwd=tmp_path).returncode == 0
    w = tmp_path / "w"
    file = w / "lessons" / "01_lr_finding.ipynb"
    assert "def costs(" in file.read_text() and "films" not in file.read_text() and "The end" in file.read_text()
    checked = two_profiles("check", "1", cwd=w)
    assert checked.returncode == 1 and "0 of 2 exercises passed" in checked.stderr and "films" not in checked.stdout
    assert checked.stdout.count("not attempted") == 2
    file.write_text(file.read_text().replace('raise NotImplementedError(\\"costs: your turn\\")', "return x + x"))
    assert "1 of 2 exercises passed" in two_profiles("check", "1", cwd=w).stderr
    ran = two_profiles("run", "1", cwd=w)
    assert ran.returncode == 0 and "costs: passed" in (w / "executed" / file.name).read_text()
    progress = two_profiles("progress", cwd=w).stdout
    assert "costs" in progress and "films" not in progress and "1 of 2 points" in progress
    start = two_profiles("start", "w", "--no-lab", "--profile", "radiology", cwd=tmp_path)
    (offer,) = w.glob("lessons/* (radiology *).ipynb")
    assert offer.name in start.stdout and "def films(" in offer.read_text() and "return x + x" in file.read_text()
    checked = two_profiles("homework", "1", cwd=w)
    assert checked.returncode == 1 and "It belongs to the part for radiology" in " ".join(checked.stdout.split()) and "1 of 2 points" not in two_profiles("progress", cwd=w).stdout


@pytest.mark.slow
def test_the_gates_try_both_profiles(two_profiles, tmp_path):
    done = two_profiles("build", "gates", "1", cwd=tmp_path)
    assert done.returncode == 0 and "No problem found" in done.stdout, done
    assert re.search(r"films +1 +1 +2 of 2 +3 of 3 ", done.stdout) and re.search(r"costs +1 +1 +2 of 2 +3 of 3 ", done.stdout)
    source = tmp_path / "lessons" / "01_lr_finding.ipynb"
    source.write_text(source.read_text().replace("## Radiology: films", "## Films"))
    assert two_profiles("build", cwd=tmp_path).returncode == 0
    done = two_profiles("build", "gates", "1", "--no-run", cwd=tmp_path)
    assert done.returncode == 1 and "films is for radiology, but its function is also in the notebook for trading" in done.stderr


@pytest.mark.slow
def test_in_a_kernel_a_check_ends_whatever_the_function_does(course):
    functions = {"loops": "while True: pass", "swallows": "while True:\n        try: time.sleep(9)\n        except BaseException: pass",
                 "asks": "return input('? ')", "talks": "print('line\\n' * 10**5)", "draws": "import matplotlib.pyplot as plt; plt.plot([1, 2]); return [1.]"}
    cells = [f"def lr_range(a, b, n):\n    {body}\nex.lr_range.check(lr_range, limit=1)" for body in functions.values()]
    write_notebook(course.lessons / "01_lr_finding.ipynb", "import time\nfrom fastcourse import exercises\nex = exercises(1)\n%matplotlib inline", *cells, "'the end'")
    done = fastcourse("run", "1", cwd=course.folder)
    assert done.returncode == 0, done
    outputs = [c["outputs"] for c in json.loads((course.folder / "executed" / "01_lr_finding.ipynb").read_text())["cells"]]
    said = dict(zip(functions, map(json.dumps, outputs[1:]), strict=False))
    assert "never ends" in said["loops"] and "never ends" in said["swallows"] and "Take the value as an argument" in said["asks"]
    assert "more lines, which a check does not show" in said["talks"] and len(said["talks"]) < 12_000
    assert "image/png" not in said["draws"], "figures that the function opened are not shown, one for each input"
    assert "the end" in json.dumps(outputs[-1])


@pytest.mark.slow
def test_ctrl_c_stops_a_lesson_and_its_kernel(course, tmp_path):
    alive = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    write_notebook(course.lessons / "01_lr_finding.ipynb", alive)
    process = subprocess.Popen([sys.executable, "-P", "-c", CLI, "run", "1"], cwd=course.folder, stderr=subprocess.PIPE, text=True)
    pid = course.lessons / "pid"
    for _ in range(300):
        time.sleep(0.1)
        if pid.exists() and pid.read_text(): break
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130 and "Traceback" not in process.stderr.read()
    with pytest.raises(ProcessLookupError): os.kill(int(pid.read_text()), 0)
    assert (course.folder / "executed" / "01_lr_finding.ipynb").is_file()


def test_start_makes_keeps_and_finds_the_folder(tmp_path):
    first = fastcourse("start", "--no-lab", "--profile", "trading", cwd=tmp_path)
    folder = tmp_path / "bootcamp"
    assert first.returncode == 0 and str(folder) in first.stdout
    before = tree(folder)
    for cwd in tmp_path, folder, folder / "lessons": assert fastcourse("start", "--no-lab", cwd=cwd).returncode == 0
    assert tree(folder) == before and b"profile = trading" in before["settings.ini"]
    assert list(tmp_path.iterdir()) == [folder]


def test_progress_counts_what_was_recorded(course):
    assert "0 of " in fastcourse("progress", cwd=course.folder).stdout


def test_data_is_listed_and_shown(tmp_path):
    listed = fastcourse("data", cwd=tmp_path, COLUMNS="160")
    assert listed.returncode == 0
    for card in cards.catalogue():
        (row,) = [line for line in listed.stdout.splitlines() if line.startswith(f"{card.name} ")]
        assert card.licence[:7] in row and f" {sum(card.images.values()):,} " in row and f" {card.px} px " in row
        assert fastcourse("data", "show", card.name, cwd=tmp_path).stdout == card.text() + "\n"
    for command in "show", "verify": refused(fastcourse("data", command, "mnist", cwd=tmp_path), "no data set 'mnist'", "fashion_mnist")


def test_a_flipped_bit_in_the_data_is_found(tmp_path, monkeypatch):
    copy = shutil.copytree(cards._FOLDER, tmp_path / "data")
    monkeypatch.setattr(cards, "_FOLDER", copy)
    assert CliRunner().invoke(app, ["data", "verify"]).exit_code == 0
    bad, good = cards.catalogue()[:2]
    whole = (copy / bad.file).read_bytes()
    (copy / bad.file).write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    done = CliRunner().invoke(app, ["data", "verify"])
    assert done.exit_code == 1 and re.search(rf"^FAIL .*{bad.file}", done.output, re.M) and re.search(rf"^OK .*{good.file}", done.output, re.M)
    assert CliRunner().invoke(app, ["data", "verify", good.name]).exit_code == 0


def test_a_closed_pipe_is_silent(tmp_path):
    command = f"'{sys.executable}' -P -c '{CLI}' data | true"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.fixture
def lab(course, tmp_path):
    "A real JupyterLab, for a user whose own kernel `python3` is another; (process, url with a place for the path)"
    kernel = tmp_path / "home" / ".local" / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps(dict(argv=["/other/python3", "{connection_file}"], display_name="Other", language="python")))
    out = open(tmp_path / "out", "w+")
    process = subprocess.Popen([sys.executable, "-P", "-c", CLI, "start", "--no-browser"], cwd=course.folder, stdout=out, stderr=subprocess.STDOUT,
                               env={**os.environ, "HOME": str(tmp_path / "home")})
    for _ in range(300):
        time.sleep(0.2)
        found = re.search(r"http://127.0.0.1:(\d+)/lab/tree/lessons/01_lr_finding.ipynb\?token=(\w+)", (tmp_path / "out").read_text())
        if found or process.poll() is not None: break
    assert found, (tmp_path / "out").read_text()
    try: yield process, f"http://127.0.0.1:{found[1]}/%s?token={found[2]}", tmp_path / "out"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_jupyterlab_opens_on_the_lesson_with_this_python_and_asks_nobody(lab, course, stop):
    process, url, out = lab
    def get(path): return json.load(urlopen(url % path, timeout=30))
    kernels = get("api/kernelspecs")
    assert kernels["default"] == "python3" and kernels["kernelspecs"]["python3"]["spec"]["argv"][0] == sys.executable
    assert "Python 3" in kernels["kernelspecs"]["python3"]["spec"]["display_name"]
    assert {x["name"] for x in get("api/contents")["content"]} >= {"lessons", "homework", "settings.ini"}
    assert get("lab/api/news") == {"news": []} and get("lab/api/update") == {"notification": None}
    assert get("lab/api/settings/@jupyterlab/apputils-extension:notification")["schema"]["properties"]["fetchNews"]["default"] == "false"
    page = json.loads(re.search(r'<script id="jupyter-config-data"[^>]*>(.*?)</script>', urlopen(url % "lab").read().decode(), re.S)[1])
    assert page["news"]["disabled"] is True
    process.send_signal(stop)
    assert process.wait(20) == 0
    said = out.read_text()
    assert f"about {load_settings(ROOT).lessons[0].minutes:g} minutes" in said and "Ctrl-C" in said and "Traceback" not in said
    assert is_free(int(url.split(":")[2].split("/")[0]))
