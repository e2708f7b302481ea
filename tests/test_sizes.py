"Sizes that change during a run: plans, resume, models, compiling, the prediction before step 0."

from functools import partial

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize as resize_image

from fastcourse import (FastcourseError, Learner, Plan, Recipe, Stages, bn_refresh, convnet, from_arrays, linear, lr_find, one_cycle, preflight,
                        progressive, resize_positions, resnet_small, strength_by_size, vit_small)
from fastcourse.train.forward import compiled
from fastcourse.train.preflight import full_rows
from fastcourse.train.resize import height_width
from fastcourse.train.sizes import SCALES
from fastcourse.train.trial import SizeError


def images(n=60, side=32, valid=12, batch_size=12, channels=1, augment=()):
    "Random images with random labels"
    draw = torch.Generator().manual_seed(n)
    x, y = torch.rand(n, channels, side, side, generator=draw), torch.arange(n) % 2
    return from_arrays(x[valid:], y[valid:], valid=(x[:valid], y[:valid]) if valid else 0, test=0, batch_size=batch_size, augment=augment)


def learner(model=lambda: convnet(2, width=4, dropout=0.2), data=None, **settings):
    return Learner(model, data or images(), loss=cross_entropy, optimizer=settings.pop("optimizer", AdamW), seed=3, **settings)


def bits(one): return [t.clone() for t in (*one.model.parameters(), *one.model.buffers())]


def same(a, b): return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# Plans

sides = st.integers(1, 40)
stages = st.lists(st.tuples(st.integers(1, 5), sides), min_size=1, max_size=4).map(lambda parts: Stages(*((share / sum(s for s, _ in parts), side) for share, side in parts)))
rules = st.sampled_from(["same_count", "same_memory"])


@settings(deadline=None, max_examples=150)
@given(stages, rules, st.integers(1, 60), st.integers(1, 25), st.sampled_from([0.3, 1, 2, 2.5]))
def test_every_sample_once_an_epoch_in_its_stage(sizes, rule, n, batch_size, epochs):
    plan = Plan(Recipe(lr=linear(1, 0), size=sizes, batch_size=rule), epochs, n, batch_size)
    at = 0
    for row in plan.rows:
        assert (row.epoch, row.first) == divmod(at, n)                                  # where the row before it ended
        left, own = min(n - row.first, plan.samples - at), sizes(at / plan.samples)
        def full(size): return batch_size if rule == "same_count" else max(1, batch_size * sizes(1) ** 2 // size**2)
        assert row.size == own or row.size == sizes(1) and full(own) + 1 >= plan.samples - at       # else this step would be the last, and not at the last size
        assert row.n == min(full(row.size), left) or row.n == left == full(row.size) + 1         # one sample alone joins the batch before it
        at += row.n
    assert at == plan.samples and plan.rows[-1].size == sizes(1)
    seen = np.array([row.epoch * n + row.first for row in plan.rows])
    assert [row.lr for row in plan.rows] == linear(1, 0).on(list(seen / (seen[-1] or 1)))        # the rate falls along the samples, whatever a step holds


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 6), st.floats(0.05, 1), st.sampled_from([1, 2, 4]))
def test_progressive_grows_by_multiples_to_the_end(start, more, count, finetune, multiple):
    start, end = start * multiple, (start + more) * multiple
    sizes = progressive(start, end, stages=count, finetune=finetune, multiple_of=multiple)
    assert list(sizes.values) == sorted(set(sizes.values)) and all(side % multiple == 0 for side in sizes.values)
    assert sizes(1) == end and sizes(1 - finetune / 2) == end                           # the last phase is at full size
    if count > 1 and finetune < 1: assert sizes(0) == start and len(sizes.values) <= count
    assert sum(share for share, _ in sizes.parts) == pytest.approx(1)


def test_sides_grow_apart_where_height_and_width_differ():
    assert progressive((16, 32), (32, 128), stages=3).values == ((16, 32), (24, 80), (32, 128))


@pytest.mark.parametrize("scale", SCALES)
def test_the_rate_follows_the_batch_only_as_the_recipe_says(scale):
    plan = Plan(Recipe(lr=0.1, size=[(0.5, 16), (0.5, 32)], batch_size="same_memory", scale_lr=scale), 1, 160, 10)
    assert [row.n for row in plan.rows] == [40, 40] + [10] * 8
    assert plan.rows[0].lr == pytest.approx(0.1 * dict(none=1, linear=4, sqrt=2)[scale]) and plan.rows[-1].lr == 0.1


def test_a_short_batch_is_no_smaller_rate():
    plan = Plan(Recipe(lr=0.1, size=[(0.5, 16), (0.5, 32)], batch_size="same_memory", scale_lr="linear"), 1, 100, 10)
    assert [row.n for row in plan.rows[:2]] == [40, 40] and plan.rows[0].lr == plan.rows[1].lr
    short = Plan(Recipe(lr=0.1, size=32, batch_size={32: 30}, scale_lr="linear"), 1, 70, 10)
    assert [(row.n, round(row.lr, 9)) for row in short.rows] == [(30, 0.3), (30, 0.3), (10, 0.3)]


def test_strength_changes_in_the_step_in_which_the_size_does():
    sizes = progressive(8, 32, stages=3)
    plan = Plan(Recipe(lr=1e-3, size=sizes, flip=strength_by_size(sizes, 0.2, 1.0)), 3, 100, 7)
    assert {(row.size, round(row.flip, 9)) for row in plan.rows} == {(8, 0.2), (20, 0.6), (32, 1.0)}


def test_plans_that_differ_in_width_alone_have_different_fingerprints():
    a, b, c = (Plan(Recipe(lr=0.1, size=size), 1, 20, 10).fingerprint for size in ((8, 8), (8, 9), 8))
    assert a == c != b


@pytest.mark.parametrize("recipe", [dict(size=[(0.5, 0), (0.5, 32)]), dict(size=(0, 32)), dict(size=lambda p: -3), dict(size=32, batch_size={16: 10}),
                                    dict(size=lambda p: "large")])
def test_a_size_that_cannot_be_is_refused_with_the_plan(recipe):
    with pytest.raises(FastcourseError): learner().plan(Recipe(lr=1e-3, **recipe), 1)


# Training

GROWING = dict(size=progressive(8, 32, stages=3, multiple_of=4), batch_size="same_memory", scale_lr="sqrt")


def test_batches_have_the_sizes_and_the_samples_of_their_rows():
    one = learner(data=images(augment=("flip", "shift")))
    plan = one.plan(Recipe(lr=one_cycle(1e-3), augment=1.0, **GROWING), 4)
    shapes = []
    for batch in one.batches(plan):
        one.step(batch)
        shapes.append(tuple(batch.x.shape))
    assert shapes == [(row.n, 1, row.size, row.size) for row in plan.rows] and {h for *_, h in shapes} == {8, 20, 32}


@pytest.mark.parametrize("left_after", [1, 3, 5])
def test_a_run_left_in_the_middle_of_its_sizes_goes_on_to_the_same_bits(tmp_path, left_after):
    def fresh(): return learner(data=images(augment=("flip",)), ema=0.9, clip=1.0, micro=5)
    recipe = Recipe(lr=one_cycle(1e-3), flip=1.0, **GROWING)
    whole = fresh()
    whole.fit(recipe, 3, progress=False)
    first = fresh()
    for batch, _ in zip(first.batches(first.plan(recipe, 3)), range(left_after)): first.step(batch)
    first.save(tmp_path / "left")
    then = fresh()
    then.resume(tmp_path / "left")
    then.fit(then.plan(recipe, 3), resume=True, progress=False)
    assert same(bits(whole), bits(then)) and same(whole.average.held, then.average.held)


def test_fit_judges_at_the_last_size():
    one = learner()
    history = one.fit(Recipe(lr=1e-3, size=16), 1, progress=False)
    assert history.epochs[-1]["valid_loss"] == one.evaluate(size=16)["loss"] != one.evaluate()["loss"]


@pytest.mark.parametrize("model", [lambda: convnet(2, width=4), lambda: resnet_small(2, width=4), lambda: vit_small(2, size=32, patch=4, width=16, depth=1),
                                   lambda: torchvision.models.resnet18(num_classes=2)], ids=["convnet", "resnet_small", "vit_small", "resnet18"])
def test_models_train_through_all_sizes(model):
    channels = 3 if "torchvision" in str(model.__code__.co_names) else 1
    one = learner(model, images(24, valid=4, batch_size=10, channels=channels))
    history = one.fit(Recipe(lr=1e-3, size=progressive(8, 32, multiple_of=8)), 3, progress=False)
    assert np.isfinite(history.losses).all() and {row.size for row in history.plan.rows} == {8, 16, 24, 32}


def test_positions_are_resized_as_an_image_of_that_grid_would_be():
    "The oracle is torchvision's own resize of an image, channel for channel"
    table = torch.randn(1, 4 * 6, 3, requires_grad=True)
    as_image = table.detach().reshape(4, 6, 3).permute(2, 0, 1)
    for grid in (8, 12), (2, 3), (4, 9):
        theirs = resize_image(as_image, list(grid), InterpolationMode.BICUBIC, antialias=True)
        assert torch.allclose(resize_positions(table, (4, 6), grid)[0].T.reshape(3, *grid), theirs, atol=1e-5)
    resize_positions(table, (4, 6), (3, 5)).sum().backward()
    assert torch.allclose(table.grad.sum(), torch.tensor(15.0 * 3), rtol=1e-4)             # each place's weights sum to 1


# Before step 0

def flat_head(): return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 32 * 32, 2))


def halved_four_times(): return nn.Sequential(*[m for i in range(4) for m in (nn.Conv2d(4 if i else 1, 4, 3, padding=1), nn.MaxPool2d(2))], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


@pytest.mark.parametrize(("model", "names"), [
    (flat_head, ["At 8 pixels", "At 20 pixels", "layer '2'", "weight [2, 4096]", "AdaptiveAvgPool2d", "It takes: 32 pixels"]),
    (halved_four_times, ["At 8 pixels", "layer '7'", "shrunk too far", "It takes: 20 pixels, 32 pixels"]),
    (lambda: torchvision.models.VisionTransformer(32, 4, 1, 2, 16, 16, num_classes=2, conv_stem_configs=None), ["At 8 pixels", "class_token", "resize_positions"]),
    (lambda: vit_small(2, size=32, patch=8, width=16, depth=1), ["At 20 pixels", "not whole patches of 8", "multiple_of=8"])])
@pytest.mark.parametrize("way", ["preflight", "fit"])
def test_a_model_that_cannot_take_a_size_is_told_before_step_0(model, names, way):
    channels = 3 if "torchvision" in str(model.__code__.co_names) else 1
    one = learner(model, images(channels=channels))
    before, draws = bits(one), torch.get_rng_state()
    recipe = Recipe(lr=1e-3, size=progressive(8, 32, stages=3))
    with pytest.raises(SizeError) as e: preflight(one, recipe) if way == "preflight" else one.fit(recipe, 1, progress=False)
    assert all(name in str(e.value) for name in names), str(e.value)
    assert same(before, bits(one)) and one.position.done == 0 and torch.equal(draws, torch.get_rng_state())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in one.model.modules())


@pytest.mark.parametrize("options", [{}, dict(ema=0.9, clip=1.0), dict(micro=5), dict(optimizer=partial(SGD, momentum=0.9))])
def test_preflight_leaves_every_bit(options):
    one, other = learner(**options), learner(**options)
    recipe = Recipe(lr=one_cycle(1e-3), **GROWING)
    draws = torch.get_rng_state()
    ahead = preflight(one, recipe, 2, rounds=1)
    assert torch.equal(draws, torch.get_rng_state())
    for each in (one, other): each.fit(recipe, 2, progress=False)
    assert same(bits(one), bits(other)) and ahead.plan.fingerprint == other.plan(recipe, 2).fingerprint


def test_preflight_counts_steps_samples_and_the_share_of_short_batches():
    one = learner(data=images(n=62, batch_size=12))                                     # 50 to train: 12, 12, 12, 12, 2 an epoch
    ahead = preflight(one, Recipe(lr=1e-3, size=[(0.5, 16), (0.5, 32)]), 2, rounds=1)
    assert ahead.table.steps.tolist() == [5, 5] and ahead.table.batch.tolist() == [12, 12] and ahead.table.scores.tolist() == [[2, 2]] * 2
    for row in ahead.sizes: assert row["seconds"] == pytest.approx(row["ms"] / 1000 * (4 + 2 / 12))
    assert ahead.seconds == pytest.approx(ahead.training + ahead.evaluating)
    assert "evaluate(size=" not in repr(ahead)


def test_preflight_says_so_where_the_data_are_larger_than_the_last_size():
    assert "evaluate(size=16)" in repr(preflight(learner(), Recipe(lr=1e-3, size=16), rounds=1))


def test_memory_is_what_a_hand_counts():
    "A linear model on 8 x 8 images: AdamW, float32. The batch is also what backward needs of the first layer; cross-entropy keeps its log-softmax"
    one = learner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), images(side=8, batch_size=10))
    ahead = preflight(one, Recipe(lr=1e-3), rounds=1)
    weights, batch, steps = 64 * 2 + 2, 10 * 64, 2
    least = 4 * (3 * weights + batch) + 8 * 10                                          # weights and two averages; x; y as int64
    most = least + 4 * (weights + steps + 3 * 10 * 2) + 8 * 10 + 64                     # gradients if kept; step counters; scores, log-softmax and their like
    assert least <= ahead.sizes[0]["MiB"] * 2**20 <= most


def test_prediction_against_a_run_of_another_plan_is_refused():
    one = learner()
    ahead = preflight(one, Recipe(lr=1e-3, size=16), rounds=1)
    with pytest.raises(FastcourseError, match="another plan"): ahead.against(one.fit(Recipe(lr=1e-3, size=32), 1, progress=False))


def test_full_rows_are_the_fullest():
    plan = Plan(Recipe(lr=0.1, size=[(0.05, 16), (0.95, 32)]), 1, 25, 12)
    assert {size: row.n for size, row in full_rows(plan).items()} == {16: 12, 32: 13}


def test_the_finder_sweeps_at_a_size():
    one = learner(lambda: vit_small(2, size=16, patch=8, width=16, depth=1), images(side=20))
    with pytest.raises(FastcourseError, match="whole patches"): lr_find(one)
    assert len(lr_find(one, size=16, per_decade=4).losses) >= 16


# Compiling

@pytest.mark.parametrize("model", [lambda: convnet(2, width=4), lambda: vit_small(2, patch=4, width=16, depth=1)], ids=["convnet", "vit_small"])
@pytest.mark.parametrize("rule", ["same_count", "same_memory"])
def test_no_more_compilations_than_sizes(model, rule):
    made = []
    def backend(graph, inputs):
        made.append(graph)
        return graph.forward
    torch._dynamo.reset()
    one = learner(model, images(n=122, valid=10, batch_size=32))                              # the last batch has 16: below, a CPU's convolutions tie a graph to it
    one._forward = compiled(one.model, partial(torch.compile, backend=backend))
    plan = one.fit(Recipe(lr=1e-3, size=progressive(16, 32, stages=3, multiple_of=8), batch_size=rule), 5, progress=False).plan
    assert 1 <= len(made) <= 3 < len({(row.size, row.n) for row in plan.rows})             # short batches are among them


# BatchNorm

def test_refreshed_statistics_are_those_of_torchs_own_update():
    ours, theirs = learner(), learner()
    for one in (ours, theirs): one.fit(Recipe(lr=1e-2, size=16), 1, progress=False)
    before = [p.clone() for p in ours.model.parameters()]
    draws = torch.get_rng_state()
    assert bn_refresh(ours) == 3 and torch.equal(draws, torch.get_rng_state())
    data = theirs.split("train")
    from fastcourse.train.core import key
    for m in theirs.model.modules():                                                       # torch's update runs the whole model in training mode: no dropout here
        if isinstance(m, nn.Dropout): m.p = 0.0
    order = data.order(key(theirs.seed, "refresh"), 0).split(theirs.data.batch_size)
    torch.optim.swa_utils.update_bn(((data.take(at)[0],) for at in order), theirs.model)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.model.buffers(), theirs.model.buffers()))
    assert same(before, list(ours.model.parameters())) and all(m.training for m in ours.model.modules())


def test_refresh_leaves_frozen_layers_and_momentum_alone():
    one = learner()
    one.fit(Recipe(lr=1e-2), 1, progress=False)
    first = next(m for m in one.model.modules() if isinstance(m, nn.BatchNorm2d))
    first.eval()
    kept = first.running_mean.clone()
    assert bn_refresh(one, batches=1) == 2 and torch.equal(first.running_mean, kept) and not first.training
    assert all(m.momentum == 0.1 for m in one.model.modules() if isinstance(m, nn.BatchNorm2d))
    assert bn_refresh(learner(lambda: nn.Sequential(nn.Flatten(), nn.Linear(1024, 2)))) == 0


def test_refresh_measures_the_averaged_weights():
    one, plain = learner(ema=0.5), learner()
    for each in (one, plain): each.fit(Recipe(lr=1e-1), 1, progress=False)
    for each in (one, plain): bn_refresh(each, size=16)
    assert not same([b for b in one.model.buffers()][3:], [b for b in plain.model.buffers()][3:])     # what comes after the first convolution depends on the weights
    with one.average.in_place(): averaged = [p.clone() for p in one.model.parameters()]
    for p, value in zip(plain.model.parameters(), averaged): p.data.copy_(value)
    bn_refresh(plain, size=16)
    assert same(list(one.model.buffers()), list(plain.model.buffers()))


def test_height_width_is_what_a_size_means():
    assert [height_width(size) for size in progressive((8, 16), (16, 16), stages=2).values] == [(8, 16), (16, 16)]


def test_an_error_while_refreshing_leaves_the_statistics_as_they_were():
    one = learner(lambda: vit_bn(), images(side=16))
    one.fit(Recipe(lr=1e-2), 1, progress=False)
    before = bits(one)
    with pytest.raises(FastcourseError, match="whole patches"): bn_refresh(one, size=18)
    with pytest.raises(FastcourseError, match="batches = 0"): bn_refresh(one, batches=0)
    assert same(before, bits(one)) and all(m.training for m in one.model.modules())


def vit_bn(): return nn.Sequential(nn.BatchNorm2d(1), vit_small(2, size=16, patch=8, width=16, depth=1))


def test_memory_is_counted_in_the_format_of_the_step():
    def kept(precision): return preflight(learner(precision=precision), Recipe(lr=1e-3), rounds=1).sizes[0]["MiB"]
    assert kept("bf16") < kept("fp32")                                                     # the maps that backward needs take half the bytes
