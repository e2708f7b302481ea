# make start                install once, then open the course in JupyterLab
#   BROWSER=no PORT=8899 PROFILE=trading DIR="my course"
# make test                 all checks, as in CI
# make lessons              run all lessons in full and write down their minutes
# make bench                run the benchmarks
# make clean                remove .venv and what was made here; bootcamp/ stays

PYTHON = python3
BROWSER = yes
PORT =
PROFILE =
DIR =
BIN = .venv/bin
export OMP_WAIT_POLICY = PASSIVE
HAS_PIP = $(BIN)/python -m pip --version >/dev/null 2>&1

start: .venv/installed
	@$(BIN)/fastcourse start $(if $(DIR),"$(DIR)") $(if $(PORT),--port "$(PORT)") $(if $(PROFILE),--profile "$(PROFILE)") $(if $(filter no,$(BROWSER)),--no-browser)

test: .venv/installed-for-tests
	$(BIN)/python .ci/tree.py
	$(BIN)/ruff check --select F --exclude fastcourse/student fastcourse tests .ci
	$(BIN)/pytest
	$(BIN)/nbdev-test nbs
	FASTCOURSE_SMALL=1 $(BIN)/nbdev-test lessons

lessons: .venv/installed
	$(BIN)/fastcourse build --minutes

bench: .venv/installed-for-tests
	@for script in $$(grep -l __main__ benchmarks/*.py); do echo "$$script"; $(BIN)/python "$$script" || exit 1; done

.venv/installed: pyproject.toml
	@$(HAS_PIP) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fastcourse needs Python 3.11 or newer, and $(PYTHON) is not that. Install it, or: make start PYTHON=/path/to/python3.12"; exit 2; }
	@$(HAS_PIP) || $(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv"; exit 2; }
	$(BIN)/python -m pip install --disable-pip-version-check --editable .
	@touch $@

.venv/installed-for-tests: .venv/installed
	$(BIN)/python -m pip install --disable-pip-version-check --editable ".[test]"
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -o -name .ipynb_checkpoints | while read -r folder; do rm -rf "$$folder"; done

.PHONY: start test lessons bench clean
