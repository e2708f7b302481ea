"""The embedded sets against the files they were made from, and a person's own arrays against what must hold."""
import dataclasses
import gzip
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from fastcourse.settings import FastcourseError
from fastcourse.train import cards, sets
from fastcourse.train.cards import DataError, card_of, catalogue, data_file, verify
from fastcourse.train.data import beans, chest_xray, fashion_mnist, from_arrays, load, spoken_digits
from fastcourse.train.resize import resize
from fastcourse.train.splits import class_split, group_split, time_split

torch.set_num_threads(2)
SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the original files are not at {SHARED}")


@pytest.fixture(autouse=True, scope="module")
def in_full():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FASTCOURSE_SMALL", raising=False)
        yield


@pytest.fixture(scope="module")
def chest(): return chest_xray()


@pytest.fixture(scope="module")
def fashion(): return fashion_mnist()


@pytest.fixture(scope="module")
def leaves(): return beans()


@pytest.fixture(scope="module")
def digits(): return spoken_digits()


# the embedded sets

def test_fashion_counts(fashion):
    assert {name: len(s) for name, s in fashion.splits.items()} == dict(train=10_000, valid=2_000, test=3_000)
    for s, each in (fashion.train, 1000), (fashion.valid, 200), (fashion.test, 300):
        assert s.y.bincount().tolist() == [each] * 10
        assert s.x.shape == (len(s), 1, 28, 28) and s.x.dtype == torch.uint8 and s.y.dtype == torch.int64
    assert fashion.augment == ("flip", "shift")


def test_chest_counts(chest):
    subtypes = chest.meta.groupby(["split", "subtype"]).size().unstack()[["normal", "bacterial", "viral"]]
    assert subtypes.loc["train"].tolist() == [1192, 2216, 1222]
    assert subtypes.loc["valid"].tolist() == [149, 314, 123]
    assert subtypes.loc["test"].tolist() == [234, 242, 148]
    assert (len(chest.train), len(chest.valid), len(chest.test)) == (4630, 586, 624)
    assert ((chest.meta["subtype"] == "normal") == (chest.meta["label"] == "normal")).all()
    assert chest.augment == ("shift",)                    # mirrored, the heart would change sides


def test_chest_patients_are_in_one_split(chest):
    groups = {name: set(s.meta["group"].tolist()) for name, s in chest.splits.items()}
    assert len(groups["train"]) == 2532 and len(groups["valid"]) == 314
    assert not groups["train"] & groups["valid"] and not (groups["train"] | groups["valid"]) & groups["test"]


def test_beans_counts(leaves):
    """The official training set has 345, 348 and 341 images; every eighth of each class is valid."""
    official = np.array([345, 348, 341])
    assert leaves.classes == ("angular_leaf_spot", "bean_rust", "healthy")
    counts = {name: s.y.bincount().tolist() for name, s in leaves.splits.items()}
    assert counts["test"] == [43, 43, 42] and counts["valid"] == (official // 8).tolist()
    assert (np.array(counts["train"]) + counts["valid"]).tolist() == official.tolist()
    assert (len(leaves.train), len(leaves.valid), len(leaves.test)) == (906, 128, 128)
    assert leaves.train.x.shape == (906, 3, 160, 160) and leaves.train.x.dtype == torch.uint8
    folders = leaves.meta["name"].str.split("/", expand=True)
    assert (folders[1] == leaves.meta["label"]).all()
    assert ((folders[0] == "test") == (leaves.meta["split"] == "test")).all()
    assert leaves.meta["name"].is_unique


def test_spoken_digits_official_counts(digits):
    """Six persons, ten digits, fifty recordings: 0 to 4 are test, 5 to 9 valid."""
    assert [len(s) for s in digits.splits.values()] == [2400, 300, 300] and digits.train.x.shape[1:] == (1, 48, 64)
    table = digits.meta.groupby(["split", "speaker", "label"])["recording"].agg(["min", "max", "nunique", "count"])
    for split, row in ("train", [10, 49, 40, 40]), ("valid", [5, 9, 5, 5]), ("test", [0, 4, 5, 5]):
        assert len(table.loc[split]) == 60 and (table.loc[split] == row).all().all()
    said = digits.meta["label"] + "_" + digits.meta["speaker"] + "_" + digits.meta["recording"].astype(str) + ".wav"
    assert (said == digits.meta["name"]).all()
    assert digits.augment == ("shift",)                   # mirrored, time would run backwards


def test_spoken_digits_by_speaker(digits):
    """No voice in two splits; all recordings of a voice are there, and the images are those of the official split."""
    new_voices = spoken_digits(split="speaker")
    speakers = {name: set(s.meta["speaker"].tolist()) for name, s in new_voices.splits.items()}
    assert speakers == dict(train={"george", "jackson", "lucas"}, valid={"nicolas"}, test={"theo", "yweweler"})
    for name, s in new_voices.splits.items(): assert s.y.bincount().tolist() == [50 * len(speakers[name])] * 10
    assert set(new_voices.meta["name"]) == set(digits.meta["name"]) and new_voices.meta["name"].is_unique
    official = {name: x for s in digits.splits.values() for name, x in zip(s.meta["name"], s.x)}
    for s in new_voices.splits.values():
        assert all(torch.equal(x, official[name]) for name, x in zip(s.meta["name"], s.x))
    counted = {name: len(s) for name, s in new_voices.splits.items()}
    assert new_voices.card.splits["speaker"]["images"] == counted


@needs_shared
@pytest.mark.parametrize("key", ["split", "split_speaker"])
def test_spoken_digits_equal_the_file_they_were_made_from(key):
    with np.load(SHARED / "spoken_digits" / "spoken_digits_logmel.npz") as z: a = dict(z)
    for i, s in enumerate(spoken_digits(split="official" if key == "split" else "speaker").splits.values()):
        own = a[key] == i
        assert np.array_equal(s.x[:, 0].numpy(), a["image"][own]) and np.array_equal(s.y.numpy(), a["label"][own])
        assert np.array_equal(s.meta["speaker"], a["speakers"][a["speaker"][own]])


@needs_shared
def test_beans_equal_the_reader_beside_them(leaves):
    spec = importlib.util.spec_from_file_location("readers", SHARED / "readers.py")
    readers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readers)
    for name, s in leaves.splits.items():
        images, labels, classes = readers.read_jpegs(SHARED / "beans" / "beans.npz", split=name)
        assert np.array_equal(s.y.numpy(), labels) and leaves.classes == tuple(classes.tolist())
        assert np.array_equal(s.x.numpy(), images.transpose(0, 3, 1, 2))


@needs_shared
def test_fashion_equals_the_file_it_was_made_from(fashion):
    with np.load(SHARED / "fashion_mnist" / "fashion_mnist_15k.npz") as z: a = dict(z)
    rows = np.concatenate([fashion.train.meta["row"], fashion.valid.meta["row"]])
    order = np.argsort(rows)
    assert len(set(rows.tolist())) == 12_000
    assert np.array_equal(torch.cat([fashion.train.x, fashion.valid.x])[order, 0].numpy(), a["x_train"])
    assert np.array_equal(torch.cat([fashion.train.y, fashion.valid.y])[order].numpy(), a["y_train"])
    assert np.array_equal(fashion.test.x[:, 0].numpy(), a["x_test"])
    assert np.array_equal(fashion.test.y.numpy(), a["y_test"])
    assert fashion.classes == tuple(a["classes"].tolist())


@needs_shared
@pytest.mark.filterwarnings("ignore:.*TorchVision are deprecated:DeprecationWarning")
def test_chest_equals_another_decoder(chest):
    with np.load(SHARED / "chest_xray" / "chest_xray_128.npz") as z: a = dict(z)
    for i, (name, s) in enumerate(chest.splits.items()):
        own = np.flatnonzero(a["split"] == i)
        assert np.array_equal(s.y.numpy(), a["label"][own]) and np.array_equal(s.meta["name"], a["name"][own])
        for at in range(0, len(own), 37):
            jpeg = torch.from_numpy(a["jpeg"][a["offsets"][own[at]]:a["offsets"][own[at] + 1]])
            assert (s.x[at].int() - decode_jpeg(jpeg, mode=ImageReadMode.GRAY).int()).abs().max() <= 3


@needs_shared
@pytest.mark.slow
def test_the_script_makes_the_shipped_files_again(tmp_path):
    script = Path(__file__).parents[1] / "benchmarks" / "prepare" / "make_data.py"
    spec = importlib.util.spec_from_file_location("make_data", script)
    make_data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_data)
    make_data.main(SHARED, tmp_path)                     # another zlib packs to other bytes, so the arrays are compared
    for card in catalogue():
        with np.load(tmp_path / card.file) as made, np.load(data_file(card.name)) as shipped:
            assert set(made) == set(shipped) and all(np.array_equal(made[k], shipped[k]) for k in shipped)


@pytest.mark.parametrize("name", ["fashion_mnist", "chest_xray", "beans", "spoken_digits"])
def test_mean_and_std_are_those_of_train(name):
    data = load(name, size=20)
    x = data.train.x.numpy().astype(np.float64) / 255
    assert data.mean.tolist() == pytest.approx(x.mean((0, 2, 3)), abs=1e-6)
    assert data.std.tolist() == pytest.approx(x.std((0, 2, 3)), abs=1e-6)


def test_published_mean_and_std(chest, fashion, leaves):
    assert leaves.mean.tolist() == pytest.approx([0.4855, 0.5189, 0.3140], abs=2e-3)
    assert leaves.std.tolist() == pytest.approx([0.2018, 0.2142, 0.1916], abs=2e-3)
    assert fashion.mean.item() == pytest.approx(0.2860, abs=2e-3) and fashion.std.item() == pytest.approx(0.3530,
    abs=2e-3)
    assert chest.mean.item() == pytest.approx(0.4819, abs=1e-4) and chest.std.item() == pytest.approx(0.2359, abs=1e-4)


def test_size_resizes_every_split(fashion):
    small = fashion_mnist(size=(14, 20))
    for name, s in small.splits.items(): assert torch.equal(s.x, resize(fashion.splits[name].x, (14, 20)))


def test_size_resizes_colour(leaves):
    small = beans(size=64).valid.x
    assert small.shape == (128, 3, 64, 64)
    pillow = np.asarray(Image.fromarray(leaves.valid.x[5].permute(1, 2, 0).numpy()).resize((64, 64), Image.BILINEAR))
    assert np.abs(small[5].permute(1, 2, 0).numpy().astype(int) - pillow).max() <= 1


def test_meta_is_one_table(chest):
    table = chest.meta
    assert list(table.columns) == ["split", "index", "label", "group", "subtype", "name"] and len(table) == 5840
    row = table[(table["split"] == "valid") & (table["index"] == 400)].iloc[0]
    assert row["label"] == chest.classes[chest.valid.y[400]] and row["name"] == chest.valid.meta["name"][400]


def test_data_is_frozen_and_says_what_it_is(chest):
    with pytest.raises(dataclasses.FrozenInstanceError): chest.batch_size = 1
    for fact in "4,630", "586", "624", "normal", "[1, 128, 128]", "256": assert fact in repr(chest)
    assert len(repr(chest)) < 300 and len(repr(chest.train)) < 100


def test_no_generator_is_drawn_from():
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()
    fashion_mnist(size=8)
    from_arrays(np.zeros((30, 2)), np.arange(30) % 2, groups=np.arange(30) // 3)
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(numbers, np.random.get_state()[1])


def test_small_keeps_the_shares(monkeypatch, capsys, chest):
    monkeypatch.setenv("FASTCOURSE_SMALL", "1")
    small = fashion_mnist()
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "FASTCOURSE_SMALL" in said and "1,500 of 15,000" in said
    assert small.batch_size == 32 and [s.y.bincount().tolist() for s in small.splits.values()] == [[100] * 10, [20] * 10, [30] * 10]
    one_in_ten = spoken_digits(split="speaker")
    assert [s.y.bincount().tolist() for s in one_in_ten.splits.values()] == [[15] * 10, [5] * 10, [10] * 10]
    few = chest_xray()
    for name, s in few.splits.items():
        assert s.y.bincount().tolist() == [-(-n // 10) for n in chest.splits[name].y.bincount().tolist()]
        first = chest.splits[name].meta["name"].tolist().index(s.meta["name"][7])
        assert torch.equal(s.x[7], chest.splits[name].x[first])


@pytest.mark.parametrize("wrong, says", [
    (dict(name="mnist"), "beans, chest_xray, fashion_mnist, spoken_digits"),
    (dict(name="chest_xray", split="random"), r"It has: official\."), (dict(name="beans", split=["official"]), "official"),
    (dict(name="spoken_digits", split="random"), r"official, speaker\."), (dict(name="beans", split=None), "split None"),
    (dict(name="fashion_mnist", size=0), "0 x 0"), (dict(name="fashion_mnist", batch_size=0), "batch_size=0"),
    (dict(name="fashion_mnist", batch_size=2.5), "whole number"), (dict(name="../settings"), "no data set")])
def test_wrong_requests(wrong, says):
    with pytest.raises(FastcourseError, match=says) as e: load(**wrong)
    assert e.value.next


# cards and sums

@pytest.mark.parametrize("card", catalogue(), ids=lambda c: c.name)
def test_a_card_is_true(card):
    data, file = load(card.name), data_file(card.name)
    assert card.images == {name: len(s) for name, s in data.splits.items()}
    assert (card.channels, card.height or card.px, card.px) == data.train.x.shape[1:]
    assert card.bytes == file.stat().st_size
    assert set(card.columns) == set(data.train.meta)
    assert card.classes == data.classes and len(card.classes) == int(data.train.y.max()) + 1
    with np.load(file) as z: assert "classes" not in z or card.classes == tuple(z["classes"].tolist())
    assert card.problems and all(row["figure"] and row["source"] for row in card.baseline)
    licence = file.with_name(f"{card.name}.LICENSE").read_text(encoding="utf-8")
    assert card.attribution.split(",")[0] in licence and "icen" in licence
    text = card.text()
    assert max(map(len, text.splitlines())) <= 88
    for fact in card.title, card.sha256, f"{card.size} pixels", *card.splits: assert fact in text
    assert card.licence.split(";")[0].replace(" ", "") in "".join(text.split())


def test_share_alike_is_said_and_kept_apart():
    card = card_of("spoken_digits")
    assert "share-alike" in card.licence and "spoken_digits.LICENSE" in card.licence
    notice = data_file("spoken_digits").with_name("spoken_digits.LICENSE").read_text(encoding="utf-8")
    for fact in "spoken_digits.npz only", "creativecommons.org/licenses/by-sa/4.0", "Changes": assert fact in notice


@pytest.fixture
def copied(tmp_path, monkeypatch):
    "The cards and Fashion-MNIST's file in a folder that may be spoilt"
    for file in cards._FOLDER.glob("*.toml"): shutil.copy(file, tmp_path)
    shutil.copy(cards._FOLDER / "fashion_mnist.npz", tmp_path)
    monkeypatch.setattr(cards, "_FOLDER", tmp_path)
    return tmp_path / "fashion_mnist.npz"


def sha256(file): return subprocess.run(["sha256sum", file], capture_output=True, text=True,
check=True).stdout.split()[0]


def flip_one_byte(file):
    data = bytearray(file.read_bytes())
    data[3_000_000] ^= 1
    file.write_bytes(data)


def cut(file): file.write_bytes(file.read_bytes()[:-1000])


@pytest.mark.parametrize("spoil", [flip_one_byte, cut, lambda file: file.write_bytes(b"")])
def test_a_spoilt_file_is_named_with_both_sums(copied, spoil):
    spoil(copied)
    with pytest.raises(DataError) as e: fashion_mnist()
    assert card_of("fashion_mnist").sha256 in e.value.what and "fashion_mnist.npz" in e.value.what
    if shutil.which("sha256sum"): assert sha256(copied) in e.value.what
    assert "pip install --force-reinstall" in e.value.next
    (name, whole, message), = verify("fashion_mnist")
    assert (name, whole) == ("fashion_mnist", False) and message == str(e.value)


def test_missing_and_whole_files(copied):
    copied.with_name("chest_xray.npz").unlink(missing_ok=True)
    assert [name for name, whole, _ in verify() if whole] == ["fashion_mnist"]
    with pytest.raises(DataError, match="chest_xray.npz is missing"): chest_xray()
    with pytest.raises(FastcourseError, match="fashion_mnist"): verify("mnist")


@pytest.mark.slow
def test_listing_the_cards_loads_nothing_heavy():
    code = ("import sys; from fastcourse.train.cards import catalogue, verify; print(len(catalogue()), "
            "all(w for _, w, _ in verify()), [m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == f"{len(catalogue())} True []\n"


# the full Fashion-MNIST

FILES = dict(x_train="train-images-idx3-ubyte", y_train="train-labels-idx1-ubyte",
x_test="t10k-images-idx3-ubyte", y_test="t10k-labels-idx1-ubyte")


def write_idx(folder, arrays, gz):
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in FILES.items():
        a = arrays[part]
        data = bytes([0, 0, 8, a.ndim]) + np.array(a.shape, ">i4").tobytes() + a.tobytes()
        (folder / f"{name}{'.gz' if gz else ''}").write_bytes(gzip.compress(data, 1) if gz else data)


@pytest.fixture(scope="module")
def original():
    if not SHARED.is_dir(): pytest.skip(f"the original files are not at {SHARED}")
    with np.load(SHARED / "fashion_mnist" / "fashion_mnist.npz") as z: return dict(z)


@pytest.fixture
def place(tmp_path, monkeypatch):
    "A working folder with a settings.ini whose data folder is empty; no Debian package and no network"
    folder = tmp_path / "large data"
    folder.mkdir()
    (tmp_path / "settings.ini").write_text("[fastcourse]\ndata = large data\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sets, "_DEBIAN", tmp_path / "debian")
    def offline(root, train, download): raise URLError("no route to host")
    monkeypatch.setattr("torchvision.datasets.FashionMNIST", offline)
    return SimpleNamespace(data=folder, debian=tmp_path / "debian", settings=tmp_path / "settings.ini")


def check_full(data, original):
    assert (len(data.train), len(data.valid), len(data.test)) == (55_000, 5_000, 10_000)
    assert [s.y.bincount().tolist() for s in data.splits.values()] == [[5500] * 10, [500] * 10, [1000] * 10]
    rows = np.concatenate([data.train.meta["row"], data.valid.meta["row"]])
    assert np.array_equal(np.sort(rows), np.arange(60_000))
    for s, part in (data.train, "train"), (data.valid, "train"), (data.test, "test"):
        assert np.array_equal(s.x[:, 0].numpy(), original[f"x_{part}"][s.meta["row"]])
        assert np.array_equal(s.y.numpy(), original[f"y_{part}"][s.meta["row"]])
    assert data.card.images == {name: len(s) for name, s in data.splits.items()} and "70,000" in data.card.title
    return data.valid.meta["row"].tolist()


@pytest.mark.slow
def test_full_from_each_of_its_places(place, original, monkeypatch):
    write_idx(place.debian, original, gz=True)
    from_debian = check_full(fashion_mnist(full=True), original)
    shutil.rmtree(place.debian)

    def torchvision(root, train, download): write_idx(Path(root) / "FashionMNIST" / "raw", original, gz=False)
    monkeypatch.setattr("torchvision.datasets.FashionMNIST", torchvision)
    assert check_full(fashion_mnist(full=True), original) == from_debian       # downloaded
    def never(root, train, download): raise AssertionError("it is there already")
    monkeypatch.setattr("torchvision.datasets.FashionMNIST", never)
    assert check_full(fashion_mnist(full=True), original) == from_debian       # found again
    shutil.rmtree(place.data / "FashionMNIST")

    shutil.copy(SHARED / "fashion_mnist" / "fashion_mnist.npz", place.data)
    assert check_full(fashion_mnist(full=True), original) == from_debian


def test_full_is_nowhere(place):
    with pytest.raises(DataError, match="no route to host") as e: fashion_mnist(full=True)
    for way in "fashion_mnist.npz", "settings.ini", "apt-get install dataset-fashion-mnist", "torchvision":
        assert way in e.value.next
    place.settings.write_text("[fastcourse]\ndata =\n")
    with pytest.raises(DataError, match="is not on this machine") as e: fashion_mnist(full=True)
    assert "download" not in e.value.what                                      # without a data folder none is tried


@pytest.mark.parametrize("content", [b"", b"PK\3\4 half a file"])
def test_full_npz_that_is_spoilt(place, content):
    (place.data / "fashion_mnist.npz").write_bytes(content)
    with pytest.raises(DataError, match=card_of("fashion_mnist").full["sha256"]) as e: fashion_mnist(full=True)
    assert "whole copy" in e.value.next


def test_full_idx_that_is_spoilt(place):
    zeros = dict(x_train=np.zeros((60, 28, 28), np.uint8), y_train=np.zeros(60, np.uint8),
                 x_test=np.zeros((10, 28, 28), np.uint8), y_test=np.zeros(10, np.uint8))
    write_idx(place.debian, zeros, gz=True)
    with pytest.raises(DataError, match=card_of("fashion_mnist").full["arrays_sha256"]): fashion_mnist(full=True)
    file = place.debian / "t10k-images-idx3-ubyte.gz"
    for spoilt in file.read_bytes()[:40], b"no gzip", gzip.compress(b"no idx"), gzip.compress(b"\0\0\x08\3\0\0"):
        file.write_bytes(spoilt)
        with pytest.raises(DataError, match="cannot be read"): fashion_mnist(full=True)
    file.unlink()                                                              # a part is no set: go on looking
    with pytest.raises(DataError, match="is not on this machine"): fashion_mnist(full=True)


# splits

def union(parts): return np.sort(np.concatenate(parts)).tolist()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=3, max_size=200), st.integers(0, 2**63), st.data())
def test_no_group_is_in_two_splits(groups, seed, draw):
    assume(len(set(groups)) >= 3)
    shares = draw.draw(st.sampled_from([(0.7, 0.15, 0.15), (0.5, 0.5), (0.8, 0.2, 0.0), (0.98, 0.01, 0.01)]))
    labels = draw.draw(st.none() | st.lists(st.integers(0, 2), min_size=len(groups), max_size=len(groups)))
    parts = group_split(groups, shares, seed, labels)
    assert union(parts) == list(range(len(groups)))
    homes = [{groups[i] for i in rows} for rows in parts]
    assert sum(map(len, homes)) == len(set(groups))
    assert all((len(rows) > 0) == (share > 0) for rows, share in zip(parts, shares))
    assert all(np.array_equal(a, b) for a, b in zip(parts, group_split(groups, shares, seed, labels)))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=60), st.integers(0, 99))
def test_groups_fill_the_shares_but_for_one_group(sizes, seed):
    """Each group goes where most is missing, so a split is overfull by less than a group, and lacks less than two."""
    shares, groups = (0.6, 0.2, 0.2), np.repeat(np.arange(len(sizes)), sizes)
    for rows, share in zip(group_split(groups, shares, seed), shares):
        assert -2 * max(sizes) <= len(rows) - share * len(groups) <= max(sizes)


def test_groups_keep_the_shares_of_the_classes(chest):
    meta = chest.meta[chest.meta["split"] != "test"]
    label = (meta["label"] == "pneumonia").to_numpy().astype(int)
    for rows, share in zip(group_split(meta["group"], (0.7, 0.15, 0.15), 3, label), (0.7, 0.15, 0.15)):
        assert len(rows) == pytest.approx(share * len(meta), rel=0.02)
        assert label[rows].mean() == pytest.approx(label.mean(), abs=0.01)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(3, 90), min_size=2, max_size=6), st.integers(0, 99))
def test_each_class_is_split_alike(sizes, seed):
    labels, shares = np.repeat(np.arange(len(sizes)), sizes), np.array([0.7, 0.2, 0.1])
    parts = class_split(labels, shares, seed)
    assert union(parts) == list(range(len(labels)))
    for rows, share in zip(parts, shares):
        for c, size in enumerate(sizes):
            n = (labels[rows] == c).sum()
            assert n >= 1 and (abs(n - share * size) < 1 or n == 1 or size < 10)


def test_the_seed_decides():
    labels = np.arange(300) % 3
    a, b, c = (class_split(labels, (0.7, 0.3), seed)[1].tolist() for seed in (1, 1, 2))
    assert a == b != c
    assert class_split(labels, (0.7, 0.3), 1 + 2**32)[1].tolist() != a
    x = np.random.default_rng(0).random((300, 2))
    assert from_arrays(x, labels, seed=1).meta["row"].tolist() == from_arrays(-x, labels, seed=1).meta["row"].tolist()


# a person's own arrays

RNG = np.random.default_rng(0)
GREY, COLOUR = RNG.integers(0, 256, (40, 12, 10), dtype=np.uint8), RNG.integers(0, 256, (40, 12, 10, 3), dtype=np.uint8)
Y = np.arange(40) % 2


@pytest.mark.parametrize("x, right", [
    (GREY, GREY[:, None]), (GREY[..., None], GREY[:, None]), (GREY[:, None], GREY[:, None]),
    (GREY.tolist(), GREY[:, None]),
    (torch.from_numpy(GREY), GREY[:, None]), (list(torch.from_numpy(GREY)), GREY[:, None]), (list(GREY), GREY[:, None]),
    (GREY.astype(np.int64), GREY[:, None]), (GREY[::-1], GREY[::-1, None]), (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
    ([Image.fromarray(i) for i in GREY], GREY[:, None]), (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
    (GREY > 99, (GREY[:, None] > 99) * np.uint8(255)), (GREY.astype(np.uint16) * 200, GREY[:, None] * np.float32(200)),
    (GREY.astype(np.int16) - 100, GREY[:, None] - np.float32(100)), (GREY / 256, np.float32(GREY[:, None] / 256)),
    (GREY.astype(np.int64) * 2, GREY[:, None] * np.float32(2)), (torch.from_numpy(GREY).bfloat16(), None),
    (GREY[:, 0], np.float32(GREY[:, 0])), (pd.DataFrame(GREY[:, 0]), np.float32(GREY[:, 0])),
    (GREY[:, 0] > 99, np.float32(GREY[:, 0] > 99)),
], ids=lambda v: getattr(v, "dtype", type(v).__name__).__str__() + str(getattr(v, "shape", "")))
def test_every_form_of_input(x, right):
    data = from_arrays(x, Y, valid=0.2, test=0.2)
    if right is None: right = torch.from_numpy(GREY).bfloat16().float().numpy()[:, None]
    assert [len(s) for s in data.splits.values()] == [24, 8, 8]
    for s in data.splits.values():
        assert s.x.dtype == (torch.uint8 if right.dtype == np.uint8 else torch.float32)
        assert np.array_equal(s.x.numpy(), right[s.meta["row"]]) and np.array_equal(s.y.numpy(), Y[s.meta["row"]])
        assert s.x.is_contiguous()
    assert sorted(data.meta["row"]) == list(range(40))
    assert data.mean.shape == data.std.shape == (right.shape[1],)


def test_own_data_do_not_share_memory_and_read_only_is_fine(recwarn):
    x = GREY.copy()
    x.flags.writeable = False
    data = from_arrays(x, Y, valid=0, test=(GREY, Y))
    before = data.test.x.clone()
    GREY[:] = GREY[::-1].copy()
    assert torch.equal(data.test.x, before) and data.valid is None and len(data.train) == len(data.test) == 40
    assert not recwarn.list


@pytest.mark.parametrize("y, classes, codes, names", [
    (["b", "a"] * 20, None, [1, 0], ("a", "b")), ([7, 3] * 20, None, [1, 0], ("3", "7")),
    ([True, False] * 20, None, [1, 0], ("False", "True")),
    ([1.0, 0.0] * 20, None, [1, 0], ("0", "1")), (["b", "a"] * 20, ["b", "a"], [0, 1], ("b", "a")),
    ([1, 0] * 20, ["n", "p"], [1, 0], ("n", "p")),
    ([True, False] * 20, ["n", "p"], [1, 0], ("n", "p")), ([3, 7] * 20, [7, 3], [1, 0], ("7", "3")),
    ([-1, 1] * 20, None, [0, 1], ("-1", "1")),
    (pd.Series(["b", "a"] * 20), None, [1, 0], ("a", "b")),
    (pd.Series(["b", "a"] * 20, dtype="category"), None, [1, 0], ("a", "b")),
    (pd.array([1, 0] * 20, dtype="Int64"), None, [1, 0], ("0", "1")), (torch.tensor([1, 0] * 20), None, [1, 0],
    ("0", "1")),
    (np.array([[1], [0]] * 20), None, [1, 0], ("0", "1")), ([10, 9] * 20, None, [1, 0], ("9", "10"))])
def test_every_form_of_label(y, classes, codes, names):
    data = from_arrays(GREY, y, classes=classes)
    assert data.classes == names
    for s in data.splits.values():
        assert s.y.dtype == torch.int64 and s.y.tolist() == [codes[i % 2] for i in s.meta["row"]]


@pytest.mark.parametrize("y, classes", [(np.arange(40) + 0.5, None), (np.arange(40), ()), (np.arange(40.0), ())])
def test_regression(y, classes):
    data = from_arrays(GREY, y, classes=classes, groups=np.arange(40) // 4)
    assert data.classes == () and data.train.y.dtype == torch.float32 and "regression" in repr(data)
    assert np.allclose(np.sort(data.meta["label"]), y)


def test_pairs_take_the_classes_of_train():
    data = from_arrays(GREY, ["b", "a"] * 20, valid=(GREY[:4], ["b", "b", "a", "b"]), test=0.25)
    assert data.valid.y.tolist() == [1, 1, 0, 1] and (len(data.train), len(data.test)) == (30, 10)
    with pytest.raises(FastcourseError, match="no class: c"): from_arrays(GREY, ["b", "a"] * 20, valid=(GREY[:1],
    ["c"]))
    with pytest.raises(FastcourseError, match="valid is float32"): from_arrays(GREY, Y, valid=(GREY / 255, Y))
    with pytest.raises(FastcourseError, match="y of test has 39"): from_arrays(GREY, Y, test=(GREY, Y[1:]))


def with_value(x, at, value):
    x = x.astype(float)
    x[at] = value
    return x


@pytest.mark.parametrize("wrong, says", [
    (dict(y=Y[1:]), "39 labels, but there are 40"), (dict(groups=[1, 2]), "2 entries"),
    (dict(x=GREY[:0], y=[]), "empty"),
    (dict(x=GREY[:, :0]), "empty"), (dict(x=with_value(GREY, (5, slice(3)), np.nan)), "30 values .* sample 5"),
    (dict(x=with_value(GREY, 39, np.inf)), "120 values .* sample 39"),
    (dict(x=with_value(GREY, 2, 1e300)), "120 values .* sample 2"),
    (dict(x=GREY.astype(object)), "Python objects"), (dict(x=GREY.astype(complex)), "complex"),
    (dict(x=GREY.astype(str)), "not numbers"),
    (dict(x=GREY[:, 0, 0]), r"shape \[40\]"), (dict(x=GREY[None, :, None, None]), "shape"), (dict(x=3), "shape"),
    (dict(x=[[1], [1, 2]]), "differ in shape"),
    (dict(x=GREY[:, :3, :, None]), "cannot be told"), (dict(x=np.zeros((40, 28, 28, 2))), "cannot be told"),
    (dict(y=[0] * 40), "All labels are '0'"), (dict(y=[0] * 38 + [1, 1]), "Class '1' has 2 samples"),
    (dict(y=np.arange(40)), "classes=()"),
    (dict(y=[None] * 40), "missing: sample 0"), (dict(y=["a", 1] * 20), "sample 1 has 1"),
    (dict(y=["a", float("nan")] * 20), "sample 1 has nan"),
    (dict(y=[0.5, float("nan")] * 20), "20 values"), (dict(y=np.eye(2)[Y]), r"shape \[40, 2\]"),
    (dict(y=Y.astype(complex)), "cannot be a label"),
    (dict(y=["a", "b"] * 20, classes=["a"]), "no class: b"), (dict(y=[0, 2] * 20, classes=["a", "b"]), "no class: 2"),
    (dict(classes=["a", "a"]), "named twice"), (dict(y=["a", "b"] * 20, classes=()), "text"),
    (dict(valid=-0.1), "valid=-0.1"), (dict(test=1.2), "test=1.2"), (dict(valid="some"), "neither a share nor a pair"),
    (dict(test=float("nan")), "not a share"),
    (dict(valid=0.6, test=0.4), "nothing to train on"), (dict(batch_size=-1), "batch_size=-1"),
    (dict(augment=["spin"]), "no augmentation spin"),
    (dict(x=GREY[:, 0], augment="flip"), "Features cannot be augmented"), (dict(groups=[1] * 20 + [2] * 20), "2 groups cannot fill 3"),
    (dict(groups=[None] * 40), "40 samples have no group"),
    (dict(groups=np.where(Y, np.nan, 1.0)), "20 samples have no group"),
    (dict(groups=[pd.NA] + list("abcdefghijklm") * 3), "1 samples have no group"),
    (dict(groups=["a", 1] * 20), "mixes"),
    (dict(x=GREY[:2], y=[0.5, 1.5]), "2 samples are too few"), (dict(groups=Y[:, None]), "groups has the shape")])
def test_wrong_input_is_named(wrong, says):
    with pytest.raises(FastcourseError, match=says) as e: from_arrays(**dict(x=GREY, y=Y) | wrong)
    assert e.value.next and len(str(e.value)) < 400


def test_a_class_that_no_training_group_has():
    y = [0] * 36 + [1] * 4
    with pytest.raises(FastcourseError, match="left for training"): from_arrays(GREY, y,
    groups=["p"] * 9 + ["q"] * 9 + ["r"] * 18 + ["s"] * 4, valid=0.9, test=0.02)


@given(st.lists(st.integers(0, 12), min_size=3, max_size=60), st.sampled_from([(0.7, 0.15, 0.15), (0.5, 0.5, 0), (0, 0.1, 0.9), (0.2, 0, 0.8)]))
def test_a_time_split_keeps_time(days, shares):
    "Every sample in one split, no date in two, each split later than the one before, none that is wanted empty, each cut at the nearest date"
    wanted = [i for i, share in enumerate(shares) if share]
    dates = np.datetime64("2020-01-01") + np.array(days)
    if len(set(days)) < len(wanted):
        with pytest.raises(FastcourseError, match="cannot fill"): time_split(dates, shares)
        return
    parts = time_split(dates, shares)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(days))) and all(len(parts[i]) > 0 for i in wanted)
    held = [dates[parts[i]] for i in wanted]
    assert all(a.max() < b.min() for a, b in zip(held, held[1:]))
    if len(wanted) == 2:
        ends, share = np.sort(np.unique(dates))[:-1], shares[wanted[0]] * len(days)
        assert abs(len(held[0]) - share) == min(abs((dates <= end).sum() - share) for end in ends)


def test_arrays_with_dates():
    dates = pd.date_range("2024-01-01", periods=40)[::-1]                         # the newest first
    own = from_arrays(GREY, Y, dates=dates, valid=0.2, test=0.2)
    assert own.test.meta["row"].tolist() == list(range(8)) and own.train.meta["row"].tolist() == list(range(16, 40))
    assert own.train.meta["date"].max() < own.valid.meta["date"].min() < own.test.meta["date"].min()
    with pytest.raises(FastcourseError, match="dates has 39"): from_arrays(GREY, Y, dates=dates[1:])
    with pytest.raises(FastcourseError, match="early sample"): from_arrays(GREY, np.arange(40) < 8, dates=dates)
