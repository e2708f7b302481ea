"""Contract 4: a run that was killed and taken up again is bit for bit the run that was not; and a file that is not right is refused, leaving all as it was."""
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn, optim

import killed
from fastcourse.settings import FastcourseError
from fastcourse.train.checkpoint import CheckpointError
from fastcourse.train.curves import one_cycle
from fastcourse.train.recipe import Recipe
from test_learner import images, learner, rich, same, state_of

SEED = 20261201


# ---- killed for real


@pytest.mark.parametrize("name, kills", [
    *((name, killed.draw_kills(SEED + i, 15, 2)) for i, name in enumerate(killed.SCENARIOS)),
    ("augmentation, dropout, BatchNorm", [5, 10]),       # 70 samples in batches of 16 are 5 steps: just at the ends of two epochs
    ("EMA, momentum", [6, 8]),                           # twice in one epoch
])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, name, kills):
    print(f"seed {SEED}, killed after {kills}")
    assert killed.survive(name, tmp_path / "run.ckpt", kills) == killed.whole(name)


def test_another_process_alone_reads_what_this_one_wrote(tmp_path):
    "No state of this process is needed: a fresh interpreter goes on from the file and ends where the whole run does"
    name = "EMA, momentum"
    here, plan = killed.make(name)
    for batch in here.batches(plan):
        here.step(batch)
        if batch.step == 6: break
    here.save(tmp_path / "a.ckpt")
    script = f"import killed; l, plan = killed.make({name!r}); l.resume({str(tmp_path / 'a.ckpt')!r}); l.fit(plan, resume=True, progress=False); print(killed.digest(l))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=os.path.dirname(__file__))
    assert told.stdout.split()[-1:] == [killed.whole(name)], told.stderr


# ---- in one process


def run(x, steps=None, **recipe):
    plan = x.plan(Recipe(lr=one_cycle(0.05), **recipe), 3)
    for batch in x.batches(plan):
        if batch.step == steps: break
        x.step(batch)
    return plan


@pytest.mark.parametrize("options", [dict(), dict(micro=3, clip=0.1), dict(ema=0.9), dict(loss=nn.CrossEntropyLoss(label_smoothing=0.1))])
@pytest.mark.parametrize("optimizer", [optim.AdamW, optim.Adagrad, optim.NAdam, optim.RMSprop])
def test_every_optimizer_and_option_survives_the_file(tmp_path, optimizer, options):
    def make(): return learner(rich, images(), optimizer=optimizer, **options)
    a, b = make(), make()
    plan = run(a, steps=8)
    a.save(tmp_path / "a.ckpt")
    b.resume(tmp_path / "a.ckpt")
    assert killed.digest(a) == killed.digest(b) and vars(a.position) == vars(b.position)
    for x in a, b: x.fit(plan, resume=True, progress=False)
    assert same(state_of(a), state_of(b)) and killed.digest(a) == killed.digest(b)


def test_a_resumed_fit_tells_its_own_steps_and_the_epochs_it_ended(tmp_path):
    whole, part, rest = (learner(rich, images()) for _ in range(3))
    plan = run(part, steps=7)
    part.save(tmp_path / "a.ckpt")
    rest.resume(tmp_path / "a.ckpt")
    told, all_of_it = rest.fit(plan, resume=True, progress=False), whole.fit(plan, progress=False)
    assert told.first == 7 and (told.losses == all_of_it.losses[7:]).all()
    assert [row["epoch"] for row in told.epochs] == [2, 3] and told.epochs[-1]["valid_loss"] == all_of_it.epochs[-1]["valid_loss"]
    told.plot()


def test_the_first_resumed_rate_is_the_next_of_the_plan(tmp_path):
    a, b = learner(), learner()
    plan = run(a, steps=4)
    a.save(tmp_path / "a.ckpt")
    b.resume(tmp_path / "a.ckpt")
    assert next(b.batches(plan, resume=True)).row == plan.rows[4]


def test_a_changed_plan_is_refused(tmp_path):
    a, b = learner(), learner()
    run(a, steps=4)
    a.save(tmp_path / "a.ckpt")
    b.resume(tmp_path / "a.ckpt")
    with pytest.raises(FastcourseError, match="not within this plan"): b.fit(b.plan(Recipe(lr=one_cycle(0.06)), 3), resume=True, progress=False)


def cut(file): file.write_bytes(file.read_bytes()[:-7])
def empty(file): file.write_bytes(b"")
def flip_a_bit(file): file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 16]))
def foreign(file): save_file({"w": torch.zeros(3)}, file)
def pickled(file): torch.save({"w": torch.zeros(3)}, file)


def newer(file):
    from safetensors import safe_open
    with safe_open(file, framework="pt") as f: facts = json.loads(f.metadata()["fastcourse"])
    save_file(load_file(file), file, metadata={"fastcourse": json.dumps(facts | dict(version=99))})


@pytest.mark.parametrize("spoil, words", [(cut, "cut off"), (empty, "cut off"), (flip_a_bit, "damaged"), (foreign, "not written by learner.save"),
                                          (pickled, "no checkpoint"), (newer, "version 99"), (os.remove, "There is no file")])
def test_a_file_that_is_no_whole_checkpoint_leaves_all_as_it_was(tmp_path, spoil, words):
    a, b = learner(rich, images()), learner(rich, images())
    run(a, steps=4), run(b, steps=2)
    a.save(tmp_path / "a.ckpt")
    spoil(tmp_path / "a.ckpt")
    before = state_of(b)
    with pytest.raises(CheckpointError, match=words): b.resume(tmp_path / "a.ckpt")
    assert same(state_of(b), before) and b.position.done == 2


@pytest.mark.parametrize("other, words", [
    (dict(seed=4), "seed = 3, this learner seed = 4"), (dict(ema=0.9), "ema = None"), (dict(clip=1.0), "clip = None"),
    (dict(optimizer=optim.SGD), "AdamW .* this is SGD"), (dict(model=lambda: nn.Linear(4, 2)), "only"),
    (dict(model=lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2))), r"float32 \[8, 4\] in the checkpoint and float32 \[9, 4\]"),
])
def test_a_checkpoint_of_another_learner_is_refused_by_name(tmp_path, other, words):
    a = learner()
    run(a, steps=4)
    a.save(tmp_path / "a.ckpt")
    b = learner(**other)
    run(b, steps=2)
    before = state_of(b)
    with pytest.raises(CheckpointError, match=words): b.resume(tmp_path / "a.ckpt")
    assert same(state_of(b), before) and b.position.done == 2


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    a = learner()
    run(a, steps=2)
    a.save(tmp_path / "a.ckpt")
    held = (tmp_path / "a.ckpt").read_bytes()
    with pytest.raises(CheckpointError, match="cannot be written"): a.save(tmp_path / "no folder" / "a.ckpt")
    a.position.torn = True
    with pytest.raises(FastcourseError, match="did not finish"): a.save(tmp_path / "a.ckpt")
    assert (tmp_path / "a.ckpt").read_bytes() == held and [f.name for f in tmp_path.iterdir()] == ["a.ckpt"]


def test_saving_changes_nothing(tmp_path):
    a, b = learner(rich, images(), ema=0.9), learner(rich, images(), ema=0.9)
    for x, saves in (a, True), (b, False):
        for batch in x.batches(x.plan(Recipe(lr=0.05, augment=1.0), 2)):
            x.step(batch)
            if saves: x.save(tmp_path / "a.ckpt")
    assert same(state_of(a), state_of(b))


# ---- clipping, averaging, compiling


def test_clipping_is_torchs_and_its_norm_is_told():
    a, b = learner(clip=0.2, optimizer=optim.SGD), learner(optimizer=optim.SGD)
    hand = optim.SGD(b.model.parameters(), lr=0.1)
    norms = []
    for batch in b.batches(b.plan(Recipe(lr=0.1), 2)):
        hand.zero_grad()
        F.cross_entropy(b.model(batch.x), batch.y).backward()
        norms.append(nn.utils.clip_grad_norm_(b.model.parameters(), 0.2).item())
        hand.step()
    told = a.fit(Recipe(lr=0.1), 2, progress=False)
    assert killed.digest(a) == killed.digest(b) and told.norms.tolist() == pytest.approx(norms, rel=1e-6) and max(norms) > 0.2


def test_an_infinite_clip_only_measures():
    a, b = learner(clip=float("inf")), learner()
    told = a.fit(Recipe(lr=0.1), 2, progress=False)
    b.fit(Recipe(lr=0.1), 2, progress=False)
    assert killed.digest(a) == killed.digest(b) and len(told.norms) == len(told.losses)


def test_clipping_sees_the_whole_batch_not_its_micro_batches():
    a, b = learner(clip=0.2, optimizer=optim.SGD), learner(clip=0.2, optimizer=optim.SGD, micro=5)
    x, y = (z.fit(Recipe(lr=0.1), 2, progress=False).norms for z in (a, b))
    assert x == pytest.approx(y, rel=1e-4)


def test_the_average_against_its_formula_and_the_model_is_judged_by_it():
    x = learner(ema=0.8, optimizer=optim.SGD)
    oracle = [p.detach().double() for p in x.model.parameters()]
    for t, batch in enumerate(x.batches(x.plan(Recipe(lr=0.3), 2))):
        x.step(batch)
        decay = min(0.8, (1 + t) / (10 + t))
        oracle = [decay * o + (1 - decay) * p.detach().double() for o, p in zip(oracle, x.model.parameters())]
    assert all(torch.allclose(o.float(), held, atol=1e-6) for o, held in zip(oracle, x.average.held))
    own = [p.detach().clone() for p in x.model.parameters()]
    judged = x.evaluate()
    assert all(torch.equal(a, b) for a, b in zip(own, x.model.parameters()))
    with torch.no_grad():
        for p, o in zip(x.model.parameters(), oracle): p.copy_(o)
    x.average = None
    assert judged["loss"] == pytest.approx(x.evaluate()["loss"], rel=1e-5)


def test_averaging_touches_no_step():
    a, b = learner(ema=0.9), learner()
    for x in a, b: x.fit(Recipe(lr=0.1), 2, progress=False)
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters()))


@pytest.mark.parametrize("wrong, words", [(dict(clip=0), "clip = 0"), (dict(clip=-1.0), "clip"), (dict(ema=1.0), "ema = 1.0"), (dict(ema=0), "ema = 0")])
def test_options_that_make_no_sense(wrong, words):
    with pytest.raises(FastcourseError, match=words): learner(**wrong)


@pytest.mark.parametrize("options", [dict(ema=0.9), dict(clip=0.1), dict(micro=3, ema=0.9, clip=1.0)])
def test_a_rehearsal_leaves_every_bit_under_every_option(options):
    x = learner(rich, images(), **options)
    run(x, steps=4)
    before, held = killed.digest(x), state_of(x)
    with x.rehearsal(): x.fit(Recipe(lr=0.5, augment=1.0), 2, progress=False)
    assert killed.digest(x) == before and same(state_of(x), held)


def test_without_a_compiler_the_model_runs_as_it_is_and_says_so(monkeypatch, capsys):
    def broken(model):
        def forward(x): raise RuntimeError("no C++ compiler")
        return forward
    monkeypatch.setattr("fastcourse.train.learner.compiled", lambda model: __import__("fastcourse.train.forward", fromlist=["x"]).compiled(model, make=broken))
    a, b = learner(compile=True), learner()
    for x in a, b: x.fit(Recipe(lr=0.1), 2, progress=False)
    assert killed.digest(a) == killed.digest(b) and capsys.readouterr().out.count("torch.compile fails here (no C++ compiler)") == 1


# ---- leaving in the middle


def test_what_is_half_done_is_said(capsys):
    x = learner()
    plan = run(x, steps=4)
    assert x.position.left == "A plan was left after 4 of its 21 steps."
    x.fit(Recipe(lr=0.1), 1)
    assert "A plan was left after 4 of its 21 steps" in capsys.readouterr().out and not x.position.left
    with pytest.raises(FastcourseError, match="not within this plan"): x.fit(plan, resume=True)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_run_goes_on_bit_for_bit_and_is_rehearsed(tmp_path):
    def make(): return learner(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)), compile=True)
    a, b = make(), make()
    plan = run(a, steps=4)
    a.save(tmp_path / "a.ckpt")
    b.resume(tmp_path / "a.ckpt")
    before = killed.digest(a)
    with a.rehearsal(): a.fit(Recipe(lr=0.5), 1, progress=False)
    assert killed.digest(a) == before
    for x in a, b: x.fit(plan, resume=True, progress=False)
    assert killed.digest(a) == killed.digest(b)
