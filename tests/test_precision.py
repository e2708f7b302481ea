"The format that was asked for is the one in use: steps, scale, clipping, finder, checkpoints, audit."

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from fastcourse import FastcourseError, Learner, Recipe, convnet, from_arrays, lr_find, one_cycle, precision_audit, quantize
from fastcourse.train import choice
from fastcourse.train.audit import gradients_of, vanishing
from fastcourse.train.precision import LossScale
from fastcourse.train.rounded import Rounded

NOT_FP32 = "bf16", "fp16"


def data(n=60, side=8):
    draw = torch.Generator().manual_seed(2)
    return from_arrays(torch.rand(n, 1, side, side, generator=draw), torch.arange(n) % 2, valid=10 / n, test=0, batch_size=12)


def learner(model=lambda: convnet(2, width=4, depth=2, dropout=0.1), precision="fp32", loss=cross_entropy, optimizer=AdamW, **settings):
    return Learner(model, data(), loss=loss, optimizer=optimizer, seed=3, precision=precision, **settings)


def bits(one): return [t.clone() for t in (*one.model.parameters(), *one.model.buffers())]


def same(a, b): return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def one_step(one, lr=1e-3):
    batch = next(one.batches(one.plan(Recipe(lr=lr), 1)))
    return one.step(batch)


# What is asked is what is used

@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_layers_work_in_the_format_and_all_else_in_float32(name, dtype):
    one, seen = learner(precision=name), []
    conv = next(m for m in one.model.modules() if isinstance(m, nn.Conv2d))
    conv.register_forward_hook(lambda m, x, out: seen.append(out.dtype))
    kinds = []
    one.loss = lambda out, y: (kinds.append(out.dtype), cross_entropy(out, y))[1]
    loss = one_step(one)
    one.evaluate()
    scores = one.predict().scores
    assert set(seen) == {dtype} and set(kinds) == {torch.float32} and loss.dtype == scores.dtype == torch.float32
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in one.model.parameters()) and one.precision.name == name
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("wrong", ["fp8", "half", None, "tf32"])
def test_a_format_that_cannot_be_had_is_an_error(wrong):
    if wrong == "tf32" and torch.cuda.is_available(): pytest.skip("this machine has a GPU")
    with pytest.raises(FastcourseError): learner(precision=wrong)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_are_refused(dtype):
    with pytest.raises(FastcourseError, match="model.float"): learner(lambda: convnet(2).to(dtype), precision="fp16")


def test_bce_inside_a_model_is_told_where_it_still_works(capsys):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.own = nn.Linear(64, 2), nn.BCELoss()
        def forward(self, x): return self.line(x.flatten(1))
    learner(WithLoss, precision="bf16")
    assert "BCEWithLogitsLoss" in capsys.readouterr().out
    learner(WithLoss)
    assert capsys.readouterr().out == ""


# The loss scale

def overflowing(at=(), n=8):
    "A linear model and a loss whose gradient is infinite in the steps `at`"
    steps = iter(range(1000))
    def loss(out, y): return cross_entropy(out, y) * (torch.tensor(1e38) if next(steps) in at else 1.0)
    return learner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), "fp16", loss=loss, optimizer=partial(SGD, momentum=0.9))


def test_a_step_with_an_infinite_gradient_is_left_out_and_counted():
    one = overflowing(at=(1,))
    plan, states = one.plan(Recipe(lr=0.1), 1), []
    for batch in one.batches(plan):
        one.step(batch)
        states.append((bits(one), one.scale.value, one.scale.skipped))
    assert [skipped for *_, skipped in states] == [0, 1, 1, 1, 1][: len(plan)]
    assert same(states[0][0], states[1][0]) and not same(states[1][0], states[2][0])
    assert [value for _, value, _ in states[:3]] == [2.0**16, 2.0**15, 2.0**15]
    assert one.position.done == len(plan)                                                    # the plan is at its end all the same
    history = overflowing(at=(2,)).fit(Recipe(lr=one_cycle(0.01)), 1, progress=False, stop_at_nan=False)
    assert history.skipped == 1 and "1 of them" in repr(history)


def test_the_scale_follows_torchs_own_scaler():
    good = [True, True, False, True, True, True, False, False, True]
    parameter = nn.Parameter(torch.ones(1))
    optimizer, theirs, ours = SGD([parameter], lr=0.0), torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2), LossScale(8.0, changes=[[0, 8.0]], patience=2)
    for fine in good:
        assert theirs.get_scale() == ours.value
        parameter.grad = torch.tensor([1.0 if fine else torch.inf])
        theirs.scale(torch.ones(1))                                                            # its scale exists from the first use on
        theirs.unscale_(optimizer), theirs.step(optimizer), theirs.update()
        ours.unscale([torch.tensor([1.0 if fine else torch.inf])])
    assert ours.skipped == good.count(False) and theirs.get_scale() == ours.value


@pytest.mark.parametrize("micro", [None, 5])
def test_the_norm_is_that_of_float32_and_clipping_comes_after_unscaling(micro):
    "A model whose sums are exact in float16: then scaled and unscaled gradients are those of float32"
    def make(precision): return learner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), precision, clip=0.05, micro=micro, optimizer=partial(SGD, momentum=0.0))
    fp16, fp32 = make("fp16"), make("fp32")
    for one in (fp16, fp32): one_step(one, lr=1.0)
    assert fp16.norm.item() == pytest.approx(fp32.norm.item(), rel=5e-3) and fp32.norm > 0.05
    for a, b in zip(fp16.model.parameters(), fp32.model.parameters()): assert torch.allclose(a, b, atol=5e-4)


def test_rehearsal_and_finder_put_the_scale_back_and_leave_no_trace():
    one, other = learner(precision="fp16"), learner(precision="fp16")
    with one.rehearsal():
        one.scale.value = 1.0
        one_step(one)
    lr_find(one, per_decade=4)
    assert vars(one.scale) == vars(other.scale)
    for each in (one, other): each.fit(Recipe(lr=one_cycle(1e-3)), 2, progress=False)
    assert same(bits(one), bits(other))


def test_steps_left_out_are_no_points_of_the_finder():
    found = lr_find(overflowing(at=(3, 4, 20)), per_decade=6)
    assert len(found.lrs) == len(found.losses) and len(set(np.diff(np.log10(found.lrs)).round(6))) > 1        # three rates are missing between the others


@pytest.mark.parametrize("name", NOT_FP32)
def test_a_run_that_was_left_goes_on_to_the_same_bits(tmp_path, name):
    recipe = Recipe(lr=one_cycle(1e-3))
    whole, first, then = (learner(precision=name, ema=0.9, clip=1.0) for _ in range(3))
    whole.fit(recipe, 2, progress=False)
    for batch, _ in zip(first.batches(first.plan(recipe, 2)), range(3)): first.step(batch)
    if name == "fp16": first.scale.value, first.scale.skipped = 512.0, 2
    first.save(tmp_path / "left")
    then.resume(tmp_path / "left")
    if name == "fp16":
        assert vars(then.scale) == vars(first.scale)
        then.scale.value, then.scale.skipped = 2.0**16, 0
    then.fit(then.plan(recipe, 2), resume=True, progress=False)
    assert same(bits(whole), bits(then))
    with pytest.raises(FastcourseError, match=f"precision = {name}"): learner(ema=0.9, clip=1.0).resume(tmp_path / "left")


def test_what_is_saved_is_plain_float32(tmp_path):
    from safetensors.torch import load_file
    one = learner(precision="fp16")
    one_step(one)
    one.save(tmp_path / "a")
    assert {t.dtype for name, t in load_file(tmp_path / "a").items() if name.startswith("model.") and t.is_floating_point()} == {torch.float32}
    fresh = convnet(2, width=4, depth=2, dropout=0.1)
    fresh.load_state_dict(one.model.state_dict())


# auto

def test_auto_takes_the_fastest_that_points_the_same_way(monkeypatch, capsys):
    import pandas
    table = pandas.DataFrame([("fp32", 9.0, 1.0, 1.0), ("bf16", 3.0, 0.3, 0.999), ("fp16", 2.0, 0.2, 0.5)], columns=["format", "ms", "times_fp32", "same_way"]).set_index("format")
    monkeypatch.setattr(choice, "candidates", lambda device: list(table.index))
    monkeypatch.setattr(choice, "measured", lambda learner, names: table)
    one = learner(precision="auto")
    assert one.precision.name == "bf16" and "precision: bf16" in capsys.readouterr().out


def test_auto_measures_on_the_real_step_and_leaves_no_trace():
    one, other = learner(), learner()
    table = choice.measured(one, ["fp32", "bf16", "fp16"], rounds=1)
    assert table.same_way["fp32"] == 1 and (table.same_way > 0.9).all() and (table.ms > 0).all()
    assert one.precision.name == "fp32" and one.scale is None
    for each in (one, other): each.fit(Recipe(lr=1e-3), 1, progress=False)
    assert same(bits(one), bits(other))


def test_on_this_device_auto_is_a_choice_that_works():
    one = learner(precision="auto")
    assert one.precision.name in choice.candidates(one.device) and torch.isfinite(one_step(one))


# Simulated formats and the audit

def test_nothing_rounded_is_the_model_itself():
    model, x = convnet(2, width=4, depth=2), torch.rand(3, 1, 8, 8)
    plain = Rounded(model, activations="fp32", weights="fp32", gradients="fp32")
    a, b = model(x), plain(x)
    a.sum().backward(), b.sum().backward()
    assert torch.equal(a, b)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters()))


def test_rounded_is_rounded_where_it_says():
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.rand(2, 4)
    out = Rounded(model, weights="fp8_e4m3", activations="bf16")(x)
    by_hand = quantize(x @ quantize(model[0].weight, "fp8_e4m3").T + quantize(model[0].bias, "fp8_e4m3"), "bf16")
    assert torch.allclose(out, by_hand, atol=1e-7)
    rounded = Rounded(model, gradients="fp4_e2m1")
    rounded(x).sum().backward()
    for p in rounded.parameters(): assert torch.equal(p.grad, quantize(p.grad, "fp4_e2m1"))
    assert not any(m._forward_hooks for m in model.modules())                                  # the model that was given is left alone


def test_exact_gradient_is_float64s():
    one = learner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)))
    batch = next(one.batches(one.plan(Recipe(lr=0.0), 1)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double()
    model.load_state_dict(one.model.state_dict())
    cross_entropy(model(batch.x.double()), batch.y).backward()
    for name, g in gradients_of(one).items(): assert torch.allclose(g, dict(model.named_parameters())[name].grad, rtol=1e-12)


def test_audit_names_the_first_layer_that_overflows():
    def make():
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        with torch.no_grad(): net[2].weight.fill_(1e5)
        return net
    audit = precision_audit(learner(make), "fp16")
    assert audit.overflows == "2" and "2 is the first layer" in repr(audit)
    assert precision_audit(learner(make), "bf16").overflows is None


def test_audit_counts_what_vanishes_and_a_scale_brings_it_back():
    one = learner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), loss=lambda out, y: 1e-8 * cross_entropy(out, y))
    exact = gradients_of(one)
    dead, alive = precision_audit(one, "fp16"), precision_audit(one, "fp16", scale=2.0**20)
    by_hand = {name: float(((g != 0) & (g.abs() <= 2.0**-25)).sum() / (g != 0).sum()) for name, g in exact.items()}
    assert dead.table.vanished.to_dict() == by_hand and max(by_hand.values()) > 0.5
    assert alive.table.vanished.max() < 0.01 and alive.same_way > 0.999 > dead.same_way
    assert vanishing(torch.zeros(3), "fp16") == 0


def test_audit_leaves_the_learner_as_it_was():
    one, other = learner(), learner()
    draws = torch.get_rng_state()
    precision_audit(one, "fp8_e5m2", scale=8.0)
    assert torch.equal(draws, torch.get_rng_state()) and not any(m._forward_hooks for m in one.model.modules())
    for each in (one, other): each.fit(Recipe(lr=1e-3), 1, progress=False)
    assert same(bits(one), bits(other))


# GPU

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_fp32_on_a_gpu_is_not_tf32_and_switches_are_handed_back():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for name, cut in (("fp32", False), ("tf32", True)):
        one, seen = learner(precision=name, device="cuda"), []
        one.loss = lambda out, y: (seen.append(torch.backends.cuda.matmul.allow_tf32), cross_entropy(out, y))[1]
        one_step(one)
        assert seen == [cut] and (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
