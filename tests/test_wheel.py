"""The wheel, installed where the repository is not: a student's first hour."""
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.version import Version

pytestmark = pytest.mark.slow
NAME = "01_lr_finding.ipynb"


def run(*command, cwd, **more):
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"FASTCOURSE_SMALL": "1"}
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, env=environ, timeout=600, **more)


def build_flags() -> list[str]:
    "Build with this environment's setuptools if it is new enough, so that no network is needed"
    try: return ["--no-build-isolation"] if Version(metadata.version("setuptools")) >= Version("77") else []
    except metadata.PackageNotFoundError: return []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "The wheel of a copy of the repository, so that nothing left in build/ gets into it"
    folder = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns(".*", "bootcamp", "build", "dist", "*.egg-info", "__pycache__", "runs")
    shutil.copytree(ROOT, folder / "copy", ignore=ignore)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", *build_flags(), "-w", folder, folder / "copy", cwd=folder, check=True)
    (file,) = folder.glob("fastcourse-*.whl")
    return file


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    "An environment of its own that has the wheel and this environment's dependencies, but not its fastcourse"
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder, check=True)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder, check=True).stdout.strip())
    (own / "dependencies.pth").write_text("\n".join(p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")))
    found = run(python, "-P", "-c", "import fastcourse, torch; print(fastcourse.__file__)", cwd=folder, check=True).stdout
    assert Path(found.strip()).is_relative_to(own)
    return folder / "bin"


def test_it_holds_data_students_notebooks_and_licences(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {f"fastcourse/{f.relative_to(ROOT / 'fastcourse').as_posix()}" for f in (ROOT / "fastcourse").rglob("*")
               if f.is_file() and "__pycache__" not in f.parts}
    assert package <= names
    assert {"fastcourse/settings.ini", f"fastcourse/student/{NAME}"} <= names
    assert any(n.startswith("fastcourse/data/") and n.endswith(".LICENSE") for n in names) and any(n.endswith("licenses/LICENSE") for n in names)
    assert not [n for n in names if n.split("/")[0] in ("nbs", "lessons", "tests", "benchmarks")]


def answer(notebook: Path):
    "Puts the author's solutions into a student's notebook"
    source = {c["id"]: c for c in json.loads((ROOT / "lessons" / notebook.name).read_text())["cells"]}
    mine = json.loads(notebook.read_text())
    for cell in mine["cells"]:
        if "NotImplementedError" in "".join(cell["source"]): cell["source"] = source[cell["id"]]["source"]
    notebook.write_text(json.dumps(mine))


def test_a_student_s_first_hour(elsewhere, tmp_path):
    home = tmp_path / "a folder of mine"
    home.mkdir()
    def fastcourse(*arguments): return run(elsewhere / "fastcourse", *arguments, cwd=home)
    assert fastcourse("start", "--no-lab").returncode == 0
    course = home / "bootcamp"

    ran = fastcourse("run", "1")
    assert ran.returncode == 0 and "100%" in ran.stderr, ran
    outputs = [o for c in json.loads((course / "executed" / NAME).read_text())["cells"] for o in c.get("outputs", [])]
    assert any("image/png" in o.get("data", {}) for o in outputs)

    for command in "check", "homework":
        done = fastcourse(command, "1")
        assert done.returncode == 1 and "not attempted" in done.stdout and "Traceback" not in done.stderr, done
    answer(course / "lessons" / NAME)
    done = fastcourse("check", "1")
    assert done.returncode == 0 and "not yet" not in done.stdout, done
    done = fastcourse("homework", "1", "--", "--epochs", "1", "--seed", "7")
    assert done.returncode == 0 and "homework/lr_finding.py --epochs 1 --seed 7" in done.stdout, done

    again = run(elsewhere / "python", "homework/lr_finding.py", "--lr", "0.01", "--epochs", "1", "--seed", "7", cwd=course)
    assert again.returncode == 0, again
    rows = [json.loads(line) for line in (course / ".fastcourse" / "attempts.jsonl").read_text().split("\n") if line]
    assert {row["status"] for row in rows} >= {"not attempted", "passed"}
