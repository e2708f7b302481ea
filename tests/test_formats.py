"Rounding against torch's own casts, and against the published definitions where torch has none."

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fastcourse import FastcourseError, formats, quantize
from fastcourse.train.formats import FORMATS, values_of

CASTS = dict(fp16=torch.float16, bf16=torch.bfloat16, fp8_e4m3=torch.float8_e4m3fn, fp8_e5m2=torch.float8_e5m2)


def patterns(dtype) -> torch.Tensor:
    "Every value of a type of 8 or 16 bits, as float32"
    if dtype.itemsize == 1: return torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype).float()


def with_neighbours(values: torch.Tensor) -> torch.Tensor:
    "Values, the midpoints between neighbours, and one float32 ulp to either side of each"
    finite = values[values.isfinite()].unique()
    middle = (finite[:-1].double() + finite[1:].double()).div(2).float()
    beyond = finite.abs().max() * torch.tensor([1.0, 1.001, 1.01, 1.04, 1.1, 1.5, 2.0, 100.0]).clamp(max=3.0e38 / finite.abs().max().item())
    points = torch.cat([finite, middle, beyond, -beyond])
    up, down = (torch.nextafter(points, torch.full_like(points, side)) for side in (math.inf, -math.inf))
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4028235e38])
    return torch.cat([points, up, down, special])


def same_bits(a, b) -> bool:
    "Equal, NaN with NaN, and 0 with the sign"
    return bool((a.isnan() == b.isnan()).all() and torch.equal(a.nan_to_num(nan=0.0), b.nan_to_num(nan=0.0)) and torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan()))


@pytest.mark.parametrize("name", CASTS)
def test_nearest_is_torchs_cast_bit_for_bit(name):
    x = with_neighbours(patterns(CASTS[name]))
    assert same_bits(quantize(x, name), x.to(CASTS[name]).float())


@pytest.mark.parametrize("name", CASTS)
def test_a_truncating_rounding_would_be_found(name):
    "The points are sharp enough to tell the roundings apart"
    x = with_neighbours(patterns(CASTS[name]))
    assert not same_bits(quantize(x, name, "truncate"), x.to(CASTS[name]).float())


@settings(deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_any_float32_is_rounded_as_torch_does(values):
    x = torch.tensor(values, dtype=torch.float32)
    for name, dtype in CASTS.items(): assert same_bits(quantize(x, name), x.to(dtype).float()), name


@settings(deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_float64_is_rounded_to_float32_once(values):
    x = torch.tensor(values, dtype=torch.float64)
    assert same_bits(quantize(x, "fp32"), x.float().double())


def nearest_by_search(value: float, name: str) -> float:
    "The nearest of the listed values by exact fractions; the even place in the middle, the largest beyond it"
    values = values_of(name).tolist()
    size = Fraction(abs(value))
    best = min(range(len(values)), key=lambda i: (abs(Fraction(values[i]) - size), i % 2))        # values alternate between even and odd last digits
    return math.copysign(values[best], value)


@pytest.mark.parametrize("name", ["fp6_e3m2", "fp6_e2m3", "fp4_e2m1"])
def test_small_formats_take_the_nearest_of_their_published_values(name):
    x = with_neighbours(torch.tensor(values_of(name), dtype=torch.float32))
    x = torch.cat([x, -x])
    x = x[x.isfinite()]
    assert quantize(x, name).tolist() == [nearest_by_search(v, name) for v in x.tolist()]
    assert quantize(torch.tensor([math.inf, -math.inf]), name).tolist() == [FORMATS[name].top, -FORMATS[name].top]


def test_published_values():
    "OCP Microscaling Formats 1.0, section 5.3, and Micikevicius 2022, table 1"
    table = formats()
    want = dict(fp8_e4m3=(448, 2**-6, 2**-9), fp8_e5m2=(57344, 2**-14, 2**-16), fp6_e3m2=(28, 0.25, 0.0625), fp6_e2m3=(7.5, 1, 0.125), fp4_e2m1=(6, 1, 0.5))
    for name, numbers in want.items(): assert tuple(table.loc[name, ["largest", "smallest_normal", "smallest"]]) == numbers


def test_tf32_keeps_ten_digits_of_a_float32():
    x = with_neighbours(patterns(torch.bfloat16))
    ours = quantize(x, "tf32")
    finite = ours[ours.isfinite()]
    assert (finite.view(torch.int32) & 0x1FFF == 0).all()                                          # the last 13 of 23 digits are 0
    ok = x.isfinite() & ours.isfinite()
    ulp = 2.0 ** ((torch.frexp(x[ok])[1] - 1).clamp(min=-126) - 10).double()
    assert ((ours[ok].double() - x[ok].double()).abs() <= ulp / 2).all()


@pytest.mark.parametrize("name", [n for n in FORMATS if n.startswith("mx")])
def test_a_block_is_its_elements_at_the_scale_of_its_largest(name):
    plain = name.removeprefix("mx")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 70, generator=draw) * 10 ** torch.randint(-6, 6, (5, 1), generator=draw).float()
    ours = quantize(x, name)
    for row, got in zip(x, ours):
        for at in range(0, 70, 32):                                                                # the last block has 6
            block = row[at : at + 32].double()
            exponent = math.floor(math.log2(block.abs().max().item())) - math.floor(math.log2(FORMATS[plain].top))
            by_hand = [nearest_by_search(v / 2.0**exponent, plain) * 2.0**exponent for v in block.tolist()]
            assert got[at : at + 32].tolist() == pytest.approx(by_hand, rel=1e-7)


def test_a_block_with_nan_or_infinity_is_lost_and_its_neighbours_are_not():
    for bad in (math.nan, math.inf):
        x = torch.ones(64)
        x[3] = bad
        got = quantize(x, "mxfp8_e4m3")
        assert got[:32].isnan().all() and torch.equal(got[32:], torch.ones(32))
    assert quantize(torch.zeros(40), "mxfp4_e2m1").tolist() == [0.0] * 40


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8_e4m3", "fp4_e2m1"])
def test_stochastic_rounding_takes_a_neighbour_and_is_right_on_average(name):
    f, n = FORMATS[name], 200_000
    for value in (1.0 + 0.3 * f.epsilon, -(1.0 + 0.85 * f.epsilon), 0.4 * f.smallest):
        got = quantize(torch.full((n,), value, dtype=torch.float64), name, "stochastic", seed=3)
        below, above = sorted(set(got.tolist()))
        assert below < value < above
        share = (value - below) / (above - below)
        sd = (above - below) * math.sqrt(share * (1 - share) / n)
        assert abs(got.mean().item() - value) < 5 * sd


def test_stochastic_draws_follow_seed_and_place():
    x = torch.rand(1000)
    a, b, c = (quantize(x, "bf16", "stochastic", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)
    state = torch.get_rng_state()
    quantize(x, "bf16", "stochastic")
    assert torch.equal(state, torch.get_rng_state())
    exact = quantize(x, "bf16")
    assert torch.equal(quantize(exact, "bf16", "stochastic", seed=9), exact)                        # what the format holds stays


@settings(deadline=None)
@given(st.floats(-1e5, 1e5, width=32), st.sampled_from(sorted(FORMATS)))
def test_rounding_again_changes_nothing_and_truncation_never_grows(value, name):
    x = torch.tensor([value], dtype=torch.float32)
    once = quantize(x, name)
    assert same_bits(quantize(once, name), once) or not once.isfinite().all()
    assert (quantize(x, name, "truncate").abs() <= x.abs()).all()


@pytest.mark.parametrize("wrong", [lambda: quantize([1.0], "fp16"), lambda: quantize(torch.arange(3), "fp16"), lambda: quantize(torch.ones(2).half(), "bf16"),
                                   lambda: quantize(torch.ones(2), "fp6"), lambda: quantize(torch.ones(2), "fp16", "up"), lambda: quantize(torch.tensor(1.0), "mxfp4_e2m1")])
def test_what_cannot_be_rounded_is_said(wrong):
    with pytest.raises(FastcourseError): wrong()


def test_shape_and_kind_are_kept_and_nothing_is_changed_in_place():
    x = torch.randn(3, 0, 5), torch.randn(2, 3, dtype=torch.float64), torch.tensor(0.1)
    for t in x:
        kept = t.clone()
        got = quantize(t, "fp16")
        assert got.shape == t.shape and got.dtype == t.dtype and torch.equal(t, kept) and got.data_ptr() != t.data_ptr() or t.numel() == 0
    assert np.isclose(quantize(torch.tensor(0.1), "fp16").item(), 0.0999755859375, atol=0)
