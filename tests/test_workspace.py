"""A student's folder: completed when something is missing, never written over."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT, cell, tree, write_notebook
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcourse.course import workspace as ws
from fastcourse.settings import PROFILES, FastcourseError, load_settings

NAME = "01_lr_finding.ipynb"


@pytest.fixture
def source(tmp_path):
    write_notebook(tmp_path / "source" / NAME, "#| default_exp lr_finding", "version = 1")
    return tmp_path / "source"


def test_a_second_call_changes_no_byte(tmp_path, source):
    ws.create(tmp_path / "w", source=source)
    before = tree(tmp_path / "w")
    assert ws.create(tmp_path / "w", source=source).messages == ()
    assert tree(tmp_path / "w") == before
    assert {"settings.ini", "pyproject.toml", "README.md", f"lessons/{NAME}", ".fastcourse/lessons.json"} == set(before)


def publish(file, version):
    "A lesson with a part for each profile"
    parts = [[cell(f"## {p}: films and costs", f"{p}1", cell_type="markdown"), cell(f"{p} = {version}", f"{p}2")] for p in ("Radiology", "Trading")]
    return write_notebook(file, "#| default_exp lr_finding", f"version = {version}", *parts[0], *parts[1], cell("## The end", "e", cell_type="markdown"))


def sources(file): return ["".join(c["source"]) for c in json.loads(file.read_text())["cells"]]


ACTIONS = st.sampled_from(["publish", "edit", "run", "delete", "lose record", "break record", "adopt", "delete offers", "radiology", "trading"])


def is_version_for(profile, file):
    mine, other = ("Radiology", "Trading") if profile == "radiology" else ("Trading", "Radiology")
    return any(s.startswith(mine) for s in sources(file)) and not any(other in s for s in sources(file))


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=12))
def test_whatever_happens_a_student_s_text_stays_where_it_was(actions):
    with tempfile.TemporaryDirectory() as folder:
        source, mine = Path(folder) / "source", Path(folder) / "w" / "lessons" / NAME
        version, written, known = 1, None, True
        publish(source / NAME, 1)
        ws.create(Path(folder) / "w", source=source)
        for step, action in enumerate(actions):
            record = Path(folder) / "w" / ".fastcourse" / "lessons.json"
            offers = sorted(mine.parent.glob("* (new *"))
            if action == "publish": version += 1; publish(source / NAME, version)
            if action == "edit": written = f"mine = {step}"; write_notebook(mine, "version = 0", written)
            if action == "run" and written: write_notebook(mine, "version = 0", written, "")
            if action == "delete": mine.unlink(); written, known = None, True
            if action == "lose record": record.unlink(missing_ok=True); known = False
            if action == "break record": record.write_text('[{"half'); known = False
            if action == "adopt" and offers: os.replace(offers[-1], mine); written, known = None, False
            if action == "delete offers": [offer.unlink() for offer in offers]
            w = ws.create(Path(folder) / "w", profile=action if action in PROFILES else None, source=source)
            profile = load_settings(w.folder).profile
            if written: assert written in mine.read_text()
            elif known: assert is_version_for(profile, mine), "nobody's work: the version for the profile"
            again = tree(Path(folder) / "w")
            assert ws.create(Path(folder) / "w", source=source).messages == ()
            assert tree(Path(folder) / "w") == again


def test_an_untouched_lesson_is_replaced_and_a_changed_one_gets_the_newer_beside_it_once(tmp_path, source):
    w = ws.create(tmp_path / "w", source=source)
    write_notebook(source / NAME, "version = 2")
    assert ["replaced" in m for m in ws.create(w.folder, source=source).messages] == [True]
    write_notebook(w.lessons / NAME, "version = 2", "mine = 1")
    write_notebook(source / NAME, "version = 3")
    (message,) = ws.create(w.folder, source=source).messages
    (offer,) = w.lessons.glob("01_lr_finding (new *.ipynb")
    assert offer.name in message and "version = 3" in offer.read_text()
    write_notebook(source / NAME, "version = 4")
    ws.create(w.folder, source=source)
    assert len(list(w.lessons.glob("01_lr_finding (new *.ipynb"))) == 2, "two in one day have two names"
    assert "version = 3" in offer.read_text()


def test_another_profile_brings_its_version_in_place_of_an_untouched_notebook_and_beside_a_changed_one(tmp_path):
    source, name = tmp_path / "source", tmp_path / "source" / NAME
    publish(name, 1)
    w = ws.create(tmp_path / "w", source=source)
    mine = w.lessons / NAME
    assert sources(mine) == ["#| default_exp lr_finding", "version = 1", "## Radiology: films and costs", "Radiology = 1", "## The end"]
    (message,) = ws.create(w.folder, profile="trading", source=source).messages
    assert "replaced by the version for trading" in message and is_version_for("trading", mine)
    write_notebook(mine, "my = 1")
    (message,) = ws.create(w.folder, profile="radiology", source=source).messages
    (offer,) = w.lessons.glob("01_lr_finding (radiology *.ipynb")
    assert offer.name in message and "newer" not in message and is_version_for("radiology", offer)
    assert sources(mine) == ["my = 1"]
    for profile in "trading", "radiology": assert ws.create(w.folder, profile=profile, source=source).messages == (), "what is there is not offered again"
    publish(name, 2)
    (message,) = ws.create(w.folder, source=source).messages
    assert "a newer version" in message and len(list(w.lessons.iterdir())) == 3


def test_a_lesson_laid_down_whole_by_an_older_version_is_replaced(tmp_path):
    publish(tmp_path / "source" / NAME, 1)
    w = ws.create(tmp_path / "w", source=tmp_path / "source")
    (w.lessons / NAME).write_text((tmp_path / "source" / NAME).read_text())
    (w.state / "lessons.json").write_text(json.dumps({NAME: {"laid": ws.digest(w.lessons / NAME)}}))
    ws.create(w.folder, source=tmp_path / "source")
    assert is_version_for("radiology", w.lessons / NAME)


def test_running_a_lesson_is_not_changing_it(tmp_path, source):
    w = ws.create(tmp_path / "w", source=source)
    ran = json.loads((w.lessons / NAME).read_text())
    ran["cells"][1] |= {"outputs": [{"output_type": "stream", "name": "stdout", "text": "1"}], "execution_count": 7}
    ran["cells"].append(dict(cell_type="code", id="empty", metadata={}, source=[], outputs=[], execution_count=None))
    ran["metadata"] = {"kernelspec": {"name": "python3"}}
    (w.lessons / NAME).write_text(json.dumps(ran))
    write_notebook(source / NAME, "version = 2")
    assert "replaced" in ws.create(w.folder, source=source).messages[0]


def test_a_notebook_that_cannot_be_read_is_left_alone(tmp_path, source):
    w = ws.create(tmp_path / "w", source=source)
    (w.lessons / NAME).write_text("{ half a notebook")
    write_notebook(source / NAME, "version = 2")
    ws.create(w.folder, source=source)
    assert (w.lessons / NAME).read_text() == "{ half a notebook"


@pytest.mark.parametrize("part", ["settings.ini", "pyproject.toml", "README.md", f"lessons/{NAME}", ".fastcourse/lessons.json"])
def test_a_missing_part_is_made_again_and_nothing_else_is_touched(tmp_path, source, part):
    w = ws.create(tmp_path / "w", source=source)
    (w.folder / "settings.ini").write_text("[fastcourse]\nseed = 7\n")
    before = tree(w.folder)
    (w.folder / part).unlink()
    ws.create(w.folder, source=source)
    after = tree(w.folder)
    assert part in after and {k: v for k, v in after.items() if k != part} == {k: v for k, v in before.items() if k != part}


@pytest.mark.parametrize("writes", range(5))
def test_stopped_after_any_write_it_is_completed_by_the_next_call(tmp_path, source, monkeypatch, writes):
    replace, count = os.replace, iter(range(100))
    def stop(*args):
        if next(count) == writes: raise KeyboardInterrupt
        replace(*args)
    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt): ws.create(tmp_path / "w", source=source)
    monkeypatch.undo()
    w = ws.create(tmp_path / "w", source=source)
    assert w.messages == () and (w.lessons / NAME).read_bytes() == (source / NAME).read_bytes()
    assert load_settings(w.folder).file == w.folder / "settings.ini"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_profile_changes_its_line_only(tmp_path, source, newline):
    w = ws.create(tmp_path / "w", source=source)
    text = newline.join(["[fastcourse]", "# profile = mine", "seed = 7", "profile: radiology", "title = T", ""])
    (w.folder / "settings.ini").write_bytes(text.encode())
    ws.create(w.folder, profile="trading", source=source)
    assert (w.folder / "settings.ini").read_bytes().decode() == text.replace("profile: radiology", "profile: trading")


def test_a_profile_mends_a_wrong_one(tmp_path, source):
    w = ws.create(tmp_path / "w", source=source)
    (w.folder / "settings.ini").write_text("[fastcourse]\nprofile = banking\n")
    with pytest.raises(FastcourseError, match="line 2"): ws.create(w.folder, source=source)
    assert load_settings(ws.create(w.folder, profile="trading", source=source).folder).profile == "trading"


def refused(folder, source, words, **more):
    before = tree(folder) if Path(folder).is_dir() else None
    with pytest.raises(FastcourseError, match=words) as e: ws.create(folder, source=source, **more)
    assert e.value.next
    assert before is None or tree(folder) == before


def test_what_cannot_be_a_workspace_is_refused_untouched(tmp_path, source):
    (tmp_path / "file").write_text("mine")
    refused(tmp_path / "file", source, "is a file")
    refused(tmp_path / "file" / "below", source, "cannot be used")
    refused(tmp_path / "new", source, "no profile 'banking'", profile="banking")
    assert not (tmp_path / "new").exists()
    with pytest.raises(FastcourseError, match="own source"): ws.create(ROOT, source=source)
    for name, text in {"settings.ini": "[other]\nx = 1\n", "pyproject.toml": "[project]\nname = 'other'\n"}.items():
        other = tmp_path / f"other {name}"
        other.mkdir()
        (other / name).write_text(text)
        refused(other, source, "another project")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write")
def test_a_folder_that_cannot_be_written_is_refused(source): refused("/proc/course", source, "cannot be used")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path, source):
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(tmp_path / "locked", source, "cannot be used")


def test_it_is_found_from_inside_and_from_right_above(tmp_path, source):
    w = ws.create(tmp_path / "bootcamp", source=source)
    for start in w.folder, w.lessons, w.state, tmp_path: assert ws.find_workspace(start) == ws.Workspace(w.folder)
    (w.folder / "settings.ini").unlink()
    with pytest.raises(FastcourseError, match="no course folder"): ws.find_workspace(tmp_path)


@pytest.mark.slow
def test_it_is_an_nbdev_project_whose_homework_is_the_student_s_own(tmp_path, source):
    w = ws.create(tmp_path / "my course", source=source)
    write_notebook(w.lessons / NAME, "#| default_exp lr_finding", "#| export\nanswer = 'mine'")
    write_notebook(source / NAME, "#| default_exp lr_finding", "#| export\nanswer = 'newer'")
    assert ws.create(w.folder, source=source).messages
    subprocess.run([Path(sys.executable).with_name("nbdev-export")], cwd=w.folder, check=True, capture_output=True)
    assert "answer = 'mine'" in (w.homework / "lr_finding.py").read_text()
