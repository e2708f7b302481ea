"""Keys: the same position gives the same numbers, and different positions give numbers that have nothing to do with each other."""
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcourse.settings import FastcourseError
from fastcourse.train.core import generators, key, keyed_order, keyed_uniform, own_draws, pick_device

seeds = st.integers(0, 2**63 - 1)


@given(seeds, st.integers(0, 1000), st.integers(0, 500))
def test_an_order_is_a_permutation(seed, epoch, n):
    assert sorted(keyed_order(seed, epoch, n).tolist()) == list(range(n))


@given(seeds, st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_a_sample_draws_the_same_in_any_company(seed, index):
    together = keyed_uniform(seed, 3, index, "flip", n=2)
    for i, sample in enumerate(index): assert torch.equal(together[i], keyed_uniform(seed, 3, [sample], "flip", n=2)[0])
    assert ((0 <= together) & (together < 1)).all()


@given(seeds)
def test_seeds_that_share_their_low_bits_differ(seed):
    for other in (seed ^ 2**32, seed ^ 2**62, seed ^ 1): assert key(seed, "order") != key(other, "order")


def test_every_first_place_is_equally_likely():
    "Over 6,000 epochs each of 6 samples comes first about 1,000 times: chi-square with 5 degrees of freedom, 20.5 at one in a thousand"
    firsts = np.bincount([keyed_order(1, epoch, 6)[0].item() for epoch in range(6000)], minlength=6)
    assert ((firsts - 1000) ** 2 / 1000).sum() < 20.5


@pytest.mark.parametrize("other", [dict(seed=2), dict(epoch=1), dict(purpose="shift"), dict(index=range(1, 20001))])
def test_draws_are_uniform_and_uncorrelated(other):
    "20,000 draws: the mean is 1/2 within 4 standard errors, and neither seed, epoch, purpose nor a neighbour's index correlates (4/sqrt(n))"
    here = dict(seed=1, epoch=0, index=range(20000), purpose="flip")
    a, b = (keyed_uniform(**at)[:, 0].double().numpy() for at in (here, here | other))
    assert abs(a.mean() - 0.5) < 4 * math.sqrt(1 / 12 / 20000)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(20000)
    counts = np.histogram(a, 16, (0, 1))[0]
    assert ((counts - 1250) ** 2 / 1250).sum() < 37.7          # chi-square, 15 degrees of freedom, one in a thousand


def test_keys_do_not_depend_on_the_process():
    code = "from fastcourse.train.core import key; print(key(7, 'order', 3))"
    for hash_seed in "0", "1":
        out = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed, "PATH": ""}, capture_output=True, text=True)
        assert int(out.stdout) == key(7, "order", 3)


@pytest.mark.parametrize("part", [1.5, None, 2**64, -(2**63) - 1])
def test_a_key_refuses_what_is_no_position(part):
    with pytest.raises(FastcourseError): key(0, part)


def test_own_draws_hands_the_generators_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), own_draws() as seed:
        seed(1)
        torch.rand(3)
        1 / 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: its own generator must be handed back too")
def test_own_draws_on_a_gpu():
    device = pick_device("cuda")
    states = [g.get_state() for g in generators(device)]
    with own_draws(device) as seed:
        seed(3); first = torch.rand(4, device=device)
        seed(3); assert torch.equal(first, torch.rand(4, device=device))
    assert all(torch.equal(g.get_state(), s) for g, s in zip(generators(device), states))
