"""How long each embedded data set takes to be ready: `python benchmarks/data_loading.py` (about two minutes).

warm            a call in a process that has loaded the set once
fresh           the first call in a new process, after `import torch` and fastcourse's modules
checked         the SHA-256 of the file alone
decoded by      all 5,840 chest films, warm; `fresh import` is what that decoder costs before its first image

Writes results/data_loading.json; exit code 1 if a load, warm or fresh, takes more than 1.5 s in the median.
"""
import io
import os
import statistics
import subprocess
import sys
from time import perf_counter

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from fastcourse.train.cards import catalogue, data_file
from fastcourse.train.data import load
from result import save

LIMIT = 1.5
OURS = "import torch; from fastcourse.train.data import load"
DECODERS = {"torchvision": "torchvision.io", "pillow": "PIL.Image"}


def seconds_of(f) -> float:
    start = perf_counter()
    f()
    return perf_counter() - start


def warm(f, n=7):
    "Seconds of `n` calls after one that does not count"
    f()
    return [seconds_of(f) for _ in range(n)]


def fresh(statement, before, n=5):
    "Seconds that `statement` takes in each of `n` new processes, `before` not counted"
    code = f"{before}; from time import perf_counter as t; a = t(); {statement}; print(t() - a)"
    def once(): return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return [float(once()) for _ in range(n)]


def decode_by(name):
    "A function that decodes all films of chest_xray"
    with np.load(data_file("chest_xray")) as z: jpeg, offsets = z["jpeg"], z["offsets"].tolist()
    data, bounds = torch.from_numpy(jpeg), list(zip(offsets, offsets[1:]))
    def opened(a, b): return np.asarray(Image.open(io.BytesIO(jpeg[a:b]), formats=["JPEG"]))
    def pillow(): return np.stack([opened(a, b) for a, b in bounds])
    def by_torchvision(): return torch.stack(decode_jpeg([data[a:b] for a, b in bounds], mode=ImageReadMode.GRAY))
    return pillow if name == "pillow" else by_torchvision


def measurements():
    "(what, seconds) of everything"
    for card in catalogue():
        yield f"{card.name}, warm", warm(lambda: load(card.name))
        yield f"{card.name}, warm, size={card.px // 2}", warm(lambda: load(card.name, size=card.px // 2))
        yield f"{card.name}, fresh", fresh(f"load({card.name!r})", OURS)
        yield f"{card.name}, checked", warm(lambda: data_file(card.name))
    for name, module in DECODERS.items():
        yield f"chest_xray, decoded by {name}", warm(decode_by(name))
        yield f"{name}, fresh import", fresh(f"import {module}", "import torch")


def summary(seconds) -> dict:
    values = dict(median_s=statistics.median(seconds), min_s=min(seconds), max_s=max(seconds))
    return dict(n=len(seconds)) | {name: round(value, 3) for name, value in values.items()}


def main() -> int:
    rows, busy = {}, round(os.getloadavg()[0], 1)
    for what, seconds in measurements():
        rows[what] = row = summary(seconds)
        print(f"{what:<34} median {row['median_s']:.3f} s, {row['min_s']:.3f} to {row['max_s']:.3f}, n = {row['n']}")
    versions = {module.__name__: module.__version__ for module in (np, torchvision, PIL)}
    save("data_loading", versions=versions, load_average_before=busy, limit_s=LIMIT, loads=rows)
    loads = [f"{card.name}, {kind}" for card in catalogue() for kind in ("warm", "fresh")]
    return int(any(rows[what]["median_s"] > LIMIT for what in loads))


if __name__ == "__main__": sys.exit(main())
