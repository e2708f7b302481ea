"""Makes again all that is made from a notebook. Fails if that changes a file, or if a module has no notebook."""
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = ["nbdev-export", "nbdev-export --path lessons", "nbdev-clean", "nbdev-clean --fname lessons", "fastcourse build"]
BY_HAND = {"fastcourse/__init__.py", "fastcourse/_modidx.py"}


def snapshot() -> dict[str, str] | None:
    "The digest of every file that git tracks or would offer to add; None outside a git checkout"
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode: return None
    files = [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]
    return {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in files}


def modules() -> set[str]:
    "The modules that the notebooks export"
    names = set()
    for notebook in [*ROOT.glob("nbs/**/*.ipynb"), *ROOT.glob("lessons/*.ipynb")]:
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            names.update(re.findall(r"^#\|\s*default_exp\s+([\w.]+)", "".join(cell["source"]), re.M))
    return {f"fastcourse/{name.replace('.', '/')}.py" for name in names}


def without_notebook() -> list[str]:
    there = {str(file.relative_to(ROOT).as_posix()) for file in ROOT.glob("fastcourse/**/*.py")}
    empty = {name for name in there if name.endswith("/__init__.py") and not (ROOT / name).read_text().strip()}
    return sorted(there - modules() - BY_HAND - empty)


def main():
    before = snapshot()
    for step in STEPS:
        command, *arguments = step.split()
        subprocess.run([Path(sys.executable).with_name(command), *arguments], cwd=ROOT, check=True)
    after = snapshot()
    changed = [] if before is None else sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
    if before is None: print("Not a git checkout: whether files changed is not checked.")
    problems = [f"changed by making it again (commit it): {name}" for name in changed]
    problems += [f"no notebook exports it (delete it): {name}" for name in without_notebook()]
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__": main()
