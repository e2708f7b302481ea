"""resize against torchvision and Pillow, and what must hold whatever the image."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from fastcourse.settings import FastcourseError
from fastcourse.train.resize import resize

torch.set_num_threads(2)
sides = st.integers(1, 40)
TOLERANCE = {torch.uint8: 0.51, torch.bfloat16: 0.51, torch.float16: 0.07, torch.float32: 1e-4, torch.float64: 0}


def noise(n, c, h, w, seed=0): return torch.from_numpy(np.random.default_rng(seed).random((n, c, h, w),
dtype=np.float32))


@settings(max_examples=60, deadline=None)
@given(sides, sides, sides, sides, st.sampled_from([1, 3, 4]))
def test_equals_torchvision(h, w, to_h, to_w, c):
    x = noise(2, c, h, w)
    right = tv.resize(x, [to_h, to_w], interpolation=InterpolationMode.BILINEAR, antialias=True)
    assert torch.allclose(resize(x, (to_h, to_w)), right, atol=1e-6)


@pytest.mark.parametrize("size", [(16, 16), (20, 11), (45, 70)])
def test_equals_pillow_within_a_grey_level(size):
    x = (noise(1, 1, 32, 48) * 255).to(torch.uint8)
    right = np.asarray(Image.fromarray(x[0, 0].numpy()).resize(size[::-1], Image.Resampling.BILINEAR))
    assert np.abs(resize(x, size)[0, 0].numpy().astype(int) - right.astype(int)).max() <= 1


@pytest.mark.parametrize("vertical", [True, False])
@pytest.mark.parametrize("period", [2, 4, 8])
@pytest.mark.parametrize("size", [16, 20, 24, 31, 48, 64])
def test_stripes_keep_their_mean(period, size, vertical):
    bright = (torch.arange(32) % period >= period // 2).float()
    stripes = bright.expand(2, 1, 32, 32) if vertical else bright[:, None].expand(2, 1, 32, 32)
    assert abs(resize(stripes, size).mean().item() - 0.5) < 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 40), st.integers(4, 48), st.floats(0, 1), st.floats(-1, 1), st.floats(-1, 1))
def test_flat_stays_flat_and_slopes_keep_their_mean(side, size, level, down, across):
    ramp = torch.linspace(-1, 1, side)
    x = (level + down * ramp[:, None] + across * ramp)[None, None]
    assert abs(resize(x, size).mean() - level) < 1e-3            # a slope is antisymmetric about its middle
    flat = torch.full((1, 2, side, side), level)
    assert torch.allclose(resize(flat, size), torch.full((1, 2, size, size), level), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(sides, sides, sides, sides, st.integers(1, 5), st.integers(0, 99))
def test_uint8_is_rounded_once_and_stays_within_the_image(h, w, to_h, to_w, c, seed):
    x = (noise(3, c, h, w, seed) * 256).to(torch.uint8)
    x[0], x[1] = 255, 0
    y = resize(x, (to_h, to_w))
    assert y.dtype == torch.uint8 and (y[0] == 255).all() and (y[1] == 0).all()
    assert x[2].min() <= y[2].min() and y[2].max() <= x[2].max()
    assert (y.float() - resize(x.float(), (to_h, to_w))).abs().max() <= 0.5 + 1e-4


@pytest.mark.parametrize("size", [9, 16, 24, 31, 48])
def test_uint8_keeps_the_mean_of_a_batch(size):
    x = (noise(500, 1, 32, 32) * 256).to(torch.uint8)
    assert abs(resize(x, size).float().mean() - x.float().mean()) / 255 < 1e-3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("size", [7, 24, (5, 9)])
def test_keeps_dtype_and_memory_format(dtype, c, size):
    x = (noise(2, c, 16, 16) * 200).to(dtype)
    assert resize(x, size).dtype == dtype and resize(x, size).is_contiguous()
    last = x.contiguous(memory_format=torch.channels_last)
    assert resize(last, size).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(resize(last, size).contiguous(), resize(x, size))
    assert torch.allclose(resize(x, size).double(), resize(x.double(), size),
    atol=TOLERANCE[dtype])


def test_same_size_is_the_same_tensor():
    x = noise(2, 3, 8, 12)
    assert resize(x, (8, 12)) is x
    assert resize(x[..., :8], 8).shape == (2, 3, 8, 8)
    assert resize(x[:0], 4).shape == (0, 3, 4, 4)


def test_gradients_pass():
    x = noise(1, 1, 8, 8).requires_grad_()
    resize(x, 4).sum().backward()
    assert abs(x.grad.sum().item() - 16) < 1e-4          # 16 small pixels, each a mean whose weights sum to 1


@pytest.mark.parametrize("x, size, says", [
    (torch.zeros(2, 1, 8, 8), 0, "0 x 0 pixels"), (torch.zeros(2, 1, 8, 8), (4, -1), "4 x -1"),
    (torch.zeros(2, 1, 8, 8), 4.0, "4.0 is not an image size"), (torch.zeros(2, 1, 8, 8), (4, 4.5), "whole pixels"),
    (torch.zeros(2, 1, 8, 8), "8", "not an image size"), (torch.zeros(1, 8, 8), 4, "series or a single image"),
    (torch.zeros(8, 8), 4, "not 2 dimensions"), (torch.zeros(1, 1, 1, 8, 8), 4, "not 5 dimensions"),
    (torch.zeros(2, 1, 8, 8, dtype=torch.int64), 4, "not torch.int64"), (np.zeros((2, 1, 8, 8)), 4, "not ndarray"),
    (torch.zeros(2, 1, 0, 8), 4, "hold no pixel")])
def test_wrong_input_is_named(x, size, says):
    with pytest.raises(FastcourseError, match=says) as e: resize(x, size)
    assert e.value.next


@pytest.mark.gpu
def test_on_an_accelerator_it_agrees_with_the_cpu():
    if not torch.cuda.is_available(): pytest.skip("no CUDA device here")
    for x in noise(5, 3, 32, 32), (noise(5, 3, 32, 32) * 255).to(torch.uint8):
        y = resize(x.cuda(), (20, 13))
        assert y.is_cuda and y.dtype == x.dtype
        assert (y.cpu().float() - resize(x, (20, 13)).float()).abs().max() <= (1 if x.dtype == torch.uint8 else 1e-5)
