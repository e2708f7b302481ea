"""Builds the data files that fastcourse/data ships: `python benchmarks/prepare/make_data.py ../shared/data`.

The folder holds `fashion_mnist/fashion_mnist.npz` (all 70,000 images), `chest_xray/chest_xray_128.npz`,
`beans/beans.npz` and `spoken_digits/spoken_digits_logmel.npz`. Prints the SHA-256 of each file written; exit code 1 if
the card beside it names another. (Another zlib packs the same arrays to other bytes.)
"""
import hashlib
import shutil
import sys
from pathlib import Path

import numpy as np

from fastcourse.train.cards import catalogue
from fastcourse.train.sets import validation_rows

TARGET = Path(__file__).parents[2] / "fastcourse" / "data"
TRAIN_PER_CLASS, VALID_PER_CLASS, TEST_PER_CLASS = 1200, 200, 300


def first_of_each_class(labels, n):
    "The rows of the first `n` samples of each class, in the order of the file"
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:n] for c in np.unique(labels)]))


def fashion_mnist(shared: Path, file: Path):
    "The first 1,200 training and 300 test images of each class; 200 a class of the former become the validation split"
    with np.load(shared / "fashion_mnist" / "fashion_mnist.npz", allow_pickle=False) as z: full = dict(z)
    train = first_of_each_class(full["y_train"], TRAIN_PER_CLASS)
    test = first_of_each_class(full["y_test"], TEST_PER_CLASS)
    label = np.concatenate([full["y_train"][train], full["y_test"][test]])
    split = np.repeat(np.uint8([0, 2]), [len(train), len(test)])
    split[validation_rows(full["y_train"][train], VALID_PER_CLASS)] = 1
    image = np.concatenate([full["x_train"][train], full["x_test"][test]])
    row = np.concatenate([train, test]).astype(np.int32)
    np.savez_compressed(file, image=image, label=label, split=split, row=row, classes=full["classes"])


def chest_xray(shared: Path, file: Path):
    "The JPEG file as it is"
    shutil.copyfile(shared / "chest_xray" / "chest_xray_128.npz", file)


def beans(shared: Path, file: Path):
    "The JPEG file as it is"
    shutil.copyfile(shared / "beans" / "beans.npz", file)


def spoken_digits(shared: Path, file: Path):
    "The spectrograms as they are"
    shutil.copyfile(shared / "spoken_digits" / "spoken_digits_logmel.npz", file)


def main(shared, target=TARGET) -> int:
    wrong = 0
    for card in catalogue():
        file = Path(target) / card.file
        globals()[card.name](Path(shared), file)
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        verdict = "as on its card" if found == card.sha256 else f"but its card says {card.sha256}"
        wrong += found != card.sha256
        print(f"{file.name}: {file.stat().st_size:,} bytes, sha256 {found}, {verdict}")
    return int(wrong > 0)


if __name__ == "__main__": sys.exit(main(*sys.argv[1:]))
