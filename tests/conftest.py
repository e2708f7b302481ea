"""What several tests need: small notebooks, a command line in a process of its own, a packaged lesson to try things with."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CLI = "from fastcourse.course.cli import main; main()"


def cell(source, id="a", **more):
    "A code cell; with cell_type=\"markdown\" a story cell"
    code = dict(outputs=[], execution_count=None) if more.get("cell_type", "code") == "code" else {}
    return dict(cell_type="code", id=id, metadata={}, source=source) | code | more


def notebook(*sources):
    "A notebook of code cells"
    return dict(cells=[cell(s, f"c{i}") if isinstance(s, str) else s for i, s in enumerate(sources)], metadata={}, nbformat=4, nbformat_minor=5)


def write_notebook(file, *sources):
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(notebook(*sources)))
    return file


def tree(folder):
    "Every file below `folder` with its bytes"
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(Path(folder).rglob("*")) if f.is_file()}


def fastcourse(*arguments, cwd, code=CLI, **environ):
    "The command in a process of its own, which need not know the repository"
    return subprocess.run([sys.executable, "-P", "-c", code, *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
                          timeout=300, env={**os.environ, "FASTCOURSE_SMALL": "1", **environ})


@pytest.fixture
def course(tmp_path):
    "A fresh workspace in a folder whose name has a space"
    from fastcourse.course.workspace import create
    return create(tmp_path / "my course")
