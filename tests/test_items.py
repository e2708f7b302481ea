"""DataLoaders as data: the same training as from memory, keyed draws, any form of batch, and what cannot be keyed is said."""
import random
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from fastcourse.settings import FastcourseError
from fastcourse.train.recipe import Recipe
from fastcourse.train.data import from_arrays
from fastcourse.train.items import Items, Loaders
from fastcourse.train.learner import Learner
from test_learner import plain, weights

G = torch.Generator().manual_seed(0)
Y = torch.arange(50) % 2
X = torch.randn(50, 4, generator=G) + 2.0 * Y[:, None]


def train(data, model=plain, loss=F.cross_entropy, micro=None, epochs=2):
    x = Learner(model, data, loss=loss, optimizer=optim.AdamW, seed=3, device="cpu", micro=micro)
    x.fit(Recipe(lr=0.01), epochs, progress=False)
    return x


def loaders(dataset=None, **kwargs):
    dataset = dataset or TensorDataset(X, Y)
    return Loaders(*(DataLoader(dataset, **dict(batch_size=8, shuffle=True) | kwargs) for _ in range(2)))


def test_a_loader_trains_like_the_same_data_in_memory():
    memory = from_arrays(X, Y, valid=(X, Y), test=0, batch_size=8)
    same = TensorDataset((memory.train.x - memory.mean) / memory.std, memory.train.y)
    a, b = train(memory), train(loaders(same))
    assert torch.allclose(weights(a), weights(b), atol=1e-6)
    assert b.evaluate()["accuracy"] == (b.predict().scores.argmax(1) == memory.train.y).double().mean()


@dataclass
class Named:
    a: torch.Tensor
    b: torch.Tensor
    label: torch.Tensor


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, a, b): return self.net(a + b)


def collated(form):
    def collate(samples):
        x, y = torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])
        return {"dict": lambda: dict(a=x, b=0 * x, labels=y), "tuple": lambda: (x, 0 * x, y), "dataclass": lambda: Named(x, 0 * x, y)}[form]()
    return collate


@pytest.mark.parametrize("form", ["dict", "tuple", "dataclass"])
@pytest.mark.parametrize("micro", [None, 3])
def test_batches_of_any_form(form, micro):
    a = train(loaders(collate_fn=collated(form)), Two, micro=micro)
    b = train(loaders(), plain, micro=micro)
    assert torch.equal(weights(a), weights(b))


class Noisy(TensorDataset):
    "Draws from all three generators"
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + torch.randn(4) + random.random() + np.random.rand(), y


def test_draws_of_a_data_set_follow_the_seed_and_leave_the_users_generators_alone():
    runs = []
    for salt in 1, 2:
        random.seed(salt), np.random.seed(salt), torch.manual_seed(salt)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        runs.append(weights(train(loaders(Noisy(X, Y)))))
        assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1] and torch.equal(torch.get_rng_state(), before[2])
    assert torch.equal(*runs)


def test_a_loop_that_was_left_goes_on_with_the_same_samples():
    whole, parts = train(loaders(Noisy(X, Y)), epochs=3), Learner(plain, loaders(Noisy(X, Y)), loss=F.cross_entropy, optimizer=optim.AdamW, seed=3, device="cpu")
    plan = parts.plan(Recipe(lr=0.01), 3)
    for batch in parts.batches(plan):
        parts.step(batch)
        if batch.step == 4: break
    for batch in parts.batches(plan, resume=True): parts.step(batch)
    assert torch.equal(weights(whole), weights(parts))


def test_orders_of_loaders():
    assert Items(DataLoader(TensorDataset(X, Y), batch_size=8)).order(1, 0).tolist() == list(range(50))
    shuffled = Items(DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True))
    assert sorted(shuffled.order(1, 0).tolist()) == list(range(50)) != shuffled.order(1, 0).tolist()
    heavy = Items(DataLoader(TensorDataset(X, Y), batch_size=8, sampler=WeightedRandomSampler([0.0] * 49 + [1.0], 20)))
    assert len(heavy) == 20 and heavy.order(1, 0).tolist() == [49] * 20
    drawn = Items(DataLoader(TensorDataset(X, Y), batch_size=8, sampler=WeightedRandomSampler([1.0] * 50, 50)))
    assert torch.equal(drawn.order(1, 0), drawn.order(1, 0)) and not torch.equal(drawn.order(1, 0), drawn.order(1, 1))
    assert len(Items(DataLoader(TensorDataset(X, Y), batch_size=8, drop_last=True))) == 48


def test_a_generator_of_its_own_is_named(capsys):
    dataset = Noisy(X, Y)
    dataset.rng = np.random.default_rng(0)
    Items(DataLoader(dataset, batch_size=8))
    assert "Noisy.rng is a generator of its own" in capsys.readouterr().out


class Stream(IterableDataset):
    def __iter__(self): yield from zip(X, Y)


@pytest.mark.parametrize("make, words", [
    (lambda: train(Loaders(DataLoader(Stream(), batch_size=8))), "stream"),
    (lambda: train(Loaders(DataLoader(TensorDataset(X, Y), batch_sampler=[[0, 1], [2, 3]]))), "batch sampler|whole number"),
    (lambda: train(loaders(TensorDataset(X))), "no target can be told"),
    (lambda: Items(DataLoader(TensorDataset(X, Y), batch_size=8)).take(torch.arange(2), strengths=dict(flip=0.5)), "augmented by their own"),
])
def test_what_cannot_be_used_is_said(make, words):
    with pytest.raises(FastcourseError, match=words): make()


# ---- reductions


@pytest.mark.parametrize("micro", [None, 3])
def test_a_summed_loss_is_summed(micro):
    "Gradient and loss are the sum over the batch, as by hand; the evaluation is the mean over samples"
    x = Learner(plain, loaders(), loss=nn.CrossEntropyLoss(reduction="sum"), optimizer=partial(optim.SGD, lr=0.1), seed=3, device="cpu", micro=micro)
    batch = next(x.batches(x.plan(Recipe(lr=0.0), 1)))
    wanted = F.cross_entropy(x.model(batch.x), batch.y, reduction="sum")
    grads = torch.autograd.grad(wanted, x.model.parameters())
    assert torch.isclose(x.step(batch), wanted) and all(torch.allclose(p.grad, g, atol=1e-6) for p, g in zip(x.model.parameters(), grads))
    said = x.predict()
    assert x.evaluate()["loss"] == pytest.approx(F.cross_entropy(said.scores, said.targets).item(), rel=1e-6)


def test_class_weights_are_evaluated_over_the_whole_split():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))
    x = train(loaders(TensorDataset(X[:47], (torch.arange(47) > 40).long())), loss=weighted)
    said = x.predict()
    assert x.evaluate()["loss"] == pytest.approx(weighted(said.scores, said.targets).item(), rel=1e-6)


def test_predictions_as_a_table(tmp_path):
    x = train(from_arrays(X, Y, classes=("no", "yes"), valid=(X[:9], Y[:9]), test=0, batch_size=8))
    x.predict().save(tmp_path / "said.csv", x.data.classes)
    import pandas
    table = pandas.read_csv(tmp_path / "said.csv")
    assert list(table) == ["index", "target", "no", "yes"] and table.target.tolist()[:2] == ["no", "yes"] and len(table) == 9


@pytest.mark.slow
def test_a_torchvision_model_with_a_frozen_body_and_a_rate_per_group():
    "Only what is trainable moves, BatchNorm in evaluation mode keeps its statistics, and the last block has a tenth of the head's rate"
    from torchvision.models import resnet18
    torch.manual_seed(0)
    model = resnet18(num_classes=2)
    for name, p in model.named_parameters(): p.requires_grad_(name.startswith(("layer4", "fc")))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d): module.eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    adam = optim.AdamW([dict(params=model.layer4.parameters(), lr=1e-4), dict(params=model.fc.parameters(), lr=1e-3)])
    seen = []
    adam.register_step_pre_hook(lambda opt, *a: seen.append([g["lr"] for g in opt.param_groups]))
    x = from_arrays(torch.randint(256, (16, 3, 32, 32), dtype=torch.uint8, generator=G), torch.arange(16) % 2, valid=0, test=0, batch_size=8)
    Learner(model, x, loss=F.cross_entropy, optimizer=adam, seed=1, device="cpu").fit(Recipe(lr=0.01), 1, progress=False)
    moved = {name for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert moved and all(name.startswith(("layer4", "fc")) and "running" not in name for name in moved)
    assert seen[0] == pytest.approx([0.001, 0.01])
