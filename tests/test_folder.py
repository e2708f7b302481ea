"""from_folder on the folders that people have: broken files, mixed kinds, lists from Excel, splits made elsewhere."""
import numpy as np
import pytest
import torch
from PIL import Image

from fastcourse.settings import FastcourseError
from fastcourse.train.data import from_arrays
from fastcourse.train.folder import from_folder, read_image

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (40, 12, 10), dtype=np.uint8)
Y = np.arange(40) % 2


def save(file, pixels, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(file, **options)


def write_classes(root, images=GREY, ending="png"):
    "Image i as root/{a, b}/NN.png, a where i is even"
    for i, image in enumerate(images): save(root / "ab"[i % 2] / f"{i:02}.{ending}", image)
    return root


@pytest.fixture
def folder(tmp_path): return write_classes(tmp_path / "my films")


def number_of(split): return [int(f[-6:-4]) for f in split.meta["file"]]


def check_pixels(data, images):
    "Each sample is the image that its file name says, with the label of its folder"
    for s in data.splits.values():
        assert np.array_equal(s.x.numpy(), images[number_of(s)]) and s.y.tolist() == [i % 2 for i in number_of(s)]
    assert sorted(i for s in data.splits.values() for i in number_of(s)) == list(range(len(images)))


COLOUR = np.stack([GREY, GREY // 2, 255 - GREY], 3)


@pytest.mark.parametrize("images, right", [
    (GREY, GREY[:, None]), (GREY.astype(np.uint16) * 257, GREY[:, None] * np.float32(257)),
    (COLOUR, COLOUR.transpose(0, 3, 1, 2))],
    ids=["8 bits", "16 bits", "RGB"])
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_pixels_come_as_they_are(tmp_path, images, right, ending):
    data = from_folder(write_classes(tmp_path / "x", images, ending), (12, 10), valid=0.2, test=0.2)
    check_pixels(data, right)
    assert data.train.x.dtype == (torch.float32 if images.dtype == np.uint16 else torch.uint8)
    assert data.classes == ("a", "b") and [len(s) for s in data.splits.values()] == [24, 8, 8]


def test_the_split_is_that_of_from_arrays(folder):
    order = np.argsort(Y, kind="stable")                  # the files of class a come first
    patients = order // 4
    own = from_folder(folder, (12, 10), group_of=lambda f: int(f.stem) // 4, seed=3, augment="shift", batch_size=8)
    same = from_arrays(GREY[order], Y[order], groups=patients, seed=3, classes=["a", "b"])
    for name, s in same.splits.items(): assert torch.equal(own.splits[name].x, s.x)
    assert own.augment == ("shift",) and own.batch_size == 8
    assert own.meta.groupby("group")["split"].nunique().max() == 1


def test_the_order_of_the_directory_does_not_matter(folder, tmp_path):
    other = tmp_path / "copied backwards"
    for file in sorted(folder.rglob("*.png"), reverse=True):
        (other / file.parent.name).mkdir(parents=True, exist_ok=True)
        (other / file.parent.name / file.name).write_bytes(file.read_bytes())
    a, b = from_folder(folder, 8), from_folder(other, 8)
    for name in a.splits:
        assert torch.equal(a.splits[name].x, b.splits[name].x)
        assert a.splits[name].meta["file"].tolist() == b.splits[name].meta["file"].tolist()


@pytest.mark.parametrize("pixels", [GREY[0], np.stack([GREY[0]] * 3, 2)], ids=["grey", "RGB"])
@pytest.mark.parametrize("size", [5, (7, 4), (24, 30)])
def test_resizing_is_pillows(tmp_path, pixels, size):
    "Pillow rounds after each direction, we once: at most one level apart"
    save(tmp_path / "x.png", pixels)
    height, width = (size, size) if isinstance(size, int) else size
    right = np.asarray(Image.fromarray(pixels).resize((width, height), Image.BILINEAR))
    x = read_image(tmp_path / "x.png", (height, width)).x
    right = right[None] if right.ndim == 2 else right.transpose(2, 0, 1)
    assert x.shape == right.shape and np.abs(x.astype(int) - right).max() <= 1


def test_kinds_of_files(tmp_path):
    for mode in "1", "L", "LA", "RGB", "RGBA", "CMYK":
        save(tmp_path / f"{mode}.tif" if mode == "CMYK" else tmp_path / f"{mode}.png", Image.new(mode, (6, 4), 0))
        found = read_image(next(tmp_path.glob(f"{mode}.*")), (4, 6))
        assert found.x.shape == (1 if mode in ("1", "L", "LA") else 3, 4, 6) and found.x.dtype == np.uint8
        assert read_image(next(tmp_path.glob(f"{mode}.*")), (4, 6), channels=1).x.shape == (1, 4, 6)
    for pixels, layers in (GREY[0], 1), (COLOUR[0], 3):
        save(tmp_path / "palette.gif", Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE))
        assert Image.open(tmp_path / "palette.gif").mode == "P" or layers == 1
        assert read_image(tmp_path / "palette.gif", (12, 10)).x.shape == (layers, 12, 10)
    save(tmp_path / "float.tif", np.full((4, 6), 0.25, np.float32))
    assert read_image(tmp_path / "float.tif", (2, 2), channels=3).x.tolist() == [[[0.25, 0.25], [0.25, 0.25]]] * 3


def test_a_photograph_on_its_side_is_put_upright(tmp_path):
    upright = np.zeros((20, 10), np.uint8)
    upright[:10] = 255                                    # bright above
    exif = Image.Exif()
    exif[274] = 6                                         # "turn by 90 degrees clockwise to see it"
    save(tmp_path / "side.png", Image.fromarray(upright).rotate(90, expand=True), exif=exif)
    assert np.array_equal(read_image(tmp_path / "side.png", (20, 10)).x[0], upright)


def test_broken_files_are_reported(folder, capsys):
    (folder / "a" / "00.png").write_bytes((folder / "a" / "00.png").read_bytes()[:70])
    (folder / "b" / "01.png").write_bytes(b"")
    (folder / "b" / "text.jpg").write_text("no picture")
    (folder / "notes.txt").write_text("seen in May")
    (folder / "a" / ".DS_Store").write_bytes(b"\0")
    data = from_folder(folder, (12, 10))
    assert [file for file, _ in data.report.unreadable] == ["a/00.png", "b/01.png", "b/text.jpg"]
    assert data.report.read == 38 == len(data.meta) and data.report.passed_over == {".txt": 1}
    assert not {"a/00.png", "b/01.png"} & set(data.meta["file"])
    assert capsys.readouterr().out == "3 of 41 images could not be read; `report` lists them.\n"
    assert "a/00.png: " in repr(data.report) and str(folder) not in str(data.report)


def test_grey_and_colour_mixed(folder):
    save(folder / "a" / "41.jpg", np.full((30, 50, 3), 200, np.uint8))
    data = from_folder(folder, (12, 10))
    assert data.train.kind == "uint8 [3, 12, 10]" and data.report.modes == {"L": 40, "RGB": 1}
    assert (data.report.smallest, data.report.largest) == ((12, 10), (30, 50))
    assert from_folder(folder, (12, 10), channels=1).train.kind == "uint8 [1, 12, 10]"


def write_list(folder, rows, name="labels.csv", encoding="utf-8", separator=","):
    (folder / name).write_text("\n".join(separator.join(map(str, row)) for row in rows), encoding=encoding)
    return folder / name


@pytest.mark.parametrize("encoding, separator", [("utf-8", ","), ("utf-8-sig", ";"), ("utf-8", "\t")])
def test_a_list_of_labels(folder, encoding, separator):
    rows = [("file", "age", "label", "group")]
    for i in reversed(range(40)):
        rows.append((f"{'ab'[i % 2]}\\{i:02}.png", 20 + i, ("None", "viral")[i % 2], f"00{i // 4}"))
    data = from_folder(write_list(folder, rows, encoding=encoding, separator=separator), (12, 10), valid=0.2, test=0.2)
    check_pixels(data, GREY[:, None])
    assert data.classes == ("None", "viral")              # a name, not a gap
    assert (data.meta["age"] == 20 + np.concatenate([number_of(s) for s in data.splits.values()])).all()
    assert set(data.meta["group"]) == {f"00{i}" for i in range(10)}
    assert data.meta.groupby("group")["split"].nunique().max() == 1


def test_the_order_of_the_lines_does_not_matter(folder):
    lines = [(f"{'ab'[i % 2]}/{i:02}.png", "ab"[i % 2]) for i in range(40)]
    a, b = (from_folder(write_list(folder, [("file", "label"), *order]), 8) for order in (lines, lines[::-1]))
    for name in a.splits: assert a.splits[name].meta["file"].tolist() == b.splits[name].meta["file"].tolist()


def test_quantities(folder):
    rows = [("file", "label")] + [(f"{'ab'[i % 2]}/{i:02}.png", i + 0.5) for i in range(40)]
    data = from_folder(write_list(folder, rows), (12, 10))
    assert data.classes == () and data.train.y.dtype == torch.float32
    for s in data.splits.values(): assert s.y.tolist() == [i + 0.5 for i in number_of(s)]


def test_labels_that_are_numbers_keep_their_names(folder):
    rows = [("file", "label")] + [(f"{'ab'[i % 2]}/{i:02}.png", (1, 0)[i % 2]) for i in range(40)]
    data = from_folder(write_list(folder, rows), (12, 10), classes=[1, 0])
    assert data.classes == ("1", "0")
    for s in data.splits.values(): assert s.y.tolist() == [i % 2 for i in number_of(s)]


@pytest.mark.parametrize("as_list", [True, False])
def test_a_division_that_is_given_is_kept(tmp_path, as_list):
    "Images 0 to 29 are train, 30 to 39 test; valid is drawn from train"
    if as_list:
        folder = write_classes(tmp_path)
        rows = [("file", "label", "split")]
        rows += [(f"{'ab'[i % 2]}/{i:02}.png", "ab"[i % 2], "Test" if i > 29 else "train") for i in range(40)]
        path = write_list(folder, rows)
    else:
        path = tmp_path / "divided"
        for i in range(40): save(path / ("test" if i > 29 else "train") / "ab"[i % 2] / f"{i:02}.png", GREY[i])
    data = from_folder(path, (12, 10), valid=0.2)
    check_pixels(data, GREY[:, None])
    assert sorted(number_of(data.test)) == list(range(30, 40)) and len(data.valid) == 6 and len(data.train) == 24
    assert set(data.meta.columns) == {"split", "index", "label", "file"}


def test_nothing_is_drawn_from_the_generators(folder):
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()
    from_folder(folder, 8)
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(numbers, np.random.get_state()[1])


def lose_class(folder):
    for file in (folder / "a").glob("*.png"): file.write_bytes(b"")

def lose_all(folder):
    lose_class(folder)
    for file in (folder / "b").glob("*.png"): file.write_bytes(b"")

def deepen(folder): save(folder / "a" / "00.png", GREY[0].astype(np.uint16) * 257)
def one_class(folder): (folder / "b").rename(folder.parent / "b")
def an_empty_class(folder): (folder / "c").mkdir()
def scans(folder):
    for file in folder.rglob("*.png"): file.rename(file.with_suffix(".dcm"))


@pytest.mark.parametrize("spoil, options, says", [
    (lose_class, {}, "No image of the class 'a' can be read"), (lose_all, {}, "None of the 40 images"),
    (deepen, {}, "1 of 40 images have more than 8 bits"), (one_class, {}, "one class only, 'a'"),
    (an_empty_class, {}, "There are no images in .*c"), (scans, {}, "20 .dcm"),
    (None, dict(size=0), "0 x 0"), (None, dict(size="big"), "not an image size"),
    (None, dict(channels=2), "channels=2"),
    (None, dict(valid=(GREY, Y)), "valid is a pair"), (None, dict(valid=1.5), "not a share"),
    (None, dict(group_of=lambda f: f.patient), "group_of fails for a/00.png"),
    (None, dict(group_of=lambda f: None), "40 samples have no group"),
    (None, dict(classes=["a"]), "no class: b"), (None, dict(augment="spin"), "no augmentation")])
def test_what_is_refused(folder, spoil, options, says):
    if spoil: spoil(folder)
    with pytest.raises(FastcourseError, match=says) as e: from_folder(folder, **dict(size=8) | options)
    assert e.value.next and len(str(e.value)) < 600


@pytest.mark.parametrize("content, says", [
    (b"", "cannot be read as a table"), (b"file,label\n", "lists no files"),
    (b"image,class\nx,y\n", "the columns image, class"),
    (b"file,label\na/00.png,a\nb/77.png,b\nb/78.png,b\n", "2 of 3 files .* b/77.png, b/78.png"),
    (b"file,label\na/00.png,a\na/00.png,b\n", "more than once: a/00.png"), (b"file,label\n,a\n", "Row 1"),
    (b"file,label\na/00.png,\nb/01.png,b\n", "missing: sample 0"),
    (b"file,label\na/00.png,a\nb/01.png,a\n", "one class only"),
    (b"file,label,split\na/00.png,a,dev\n", "holds 'dev'"),
    (b"file,label,split\na/00.png,a,\n", "split of .* holds nan"),
    (b"file,label,split\na/00.png,a,test\nb/01.png,b,test\n", "No image is in the split train"),
    (b"file,label,split\na/00.png,a,train\nb/01.png,b,test\n", "of the class 'b'"),
    (b"file,label,group,split\na/00.png,a,p,train\nb/01.png,b,p,test\n", "1 groups are in more than one split: p"),
    (b"\xff\xfe\0\0\x80\x81", "cannot be read as a table|the columns"), (b"file,label\na/00.png,\xe9\n", "UTF-8")])
def test_lists_that_are_refused(folder, content, says):
    (folder / "labels.csv").write_bytes(content)
    with pytest.raises(FastcourseError, match=says) as e: from_folder(folder / "labels.csv", 8)
    assert e.value.next


def test_a_missing_path_and_two_sources_of_groups(folder):
    with pytest.raises(FastcourseError, match="does not exist"): from_folder(folder / "nowhere", 8)
    with pytest.raises(FastcourseError, match="not a path"): from_folder(None, 8)
    listed = write_list(folder, [("file", "label", "group"), ("a/00.png", "a", "p"), ("b/01.png", "b", "q")])
    with pytest.raises(FastcourseError, match="group_of too"): from_folder(listed, 8, group_of=lambda f: f.stem)


# ---- a list with patients and dates


DAYS = [f"2024-03-{1 + i // 4:02}" for i in range(40)]      # four films a day, on ten days


def write_dated(folder, days=DAYS, patients=None):
    patients = patients or [f"p{i // 4}" for i in range(40)]
    lines = [f"{'ab'[i % 2]}/{i:02}.png,{'ab'[i % 2]},{days[i]},{patients[i]}" for i in range(40)]
    (folder / "list.csv").write_text("\n".join(["file,label,taken,patient", *lines]))
    return folder / "list.csv"


def test_a_column_of_dates_splits_by_time(folder):
    "Of ten days the first six, the next two, the last two"
    data = from_folder(write_dated(folder), 8, date_of="taken", valid=0.2, test=0.2)
    assert {name: sorted(set(s.meta["taken"])) for name, s in data.splits.items()} == {
        "train": DAYS[0:24:4], "valid": DAYS[24:32:4], "test": DAYS[32:40:4]}
    assert all(sorted(number_of(s)) == list(range(*span)) for s, span in zip(data.splits.values(), [(0, 24), (24, 32), (32, 40)]))


def test_a_column_of_patients_keeps_them_whole(folder):
    data = from_folder(write_dated(folder), 8, group_of="patient", valid=0.2, test=0.2)
    assert data.meta.groupby("patient")["split"].nunique().max() == 1 and [len(s) for s in data.splits.values()] == [24, 8, 8]


@pytest.mark.parametrize("make, words", [
    (lambda f: from_folder(write_dated(f), 8, date_of="day"), "no column 'day'. Columns: taken, patient"),
    (lambda f: from_folder(f, 8, date_of="day"), "no column 'day'. Columns: none"),
    (lambda f: from_folder(write_dated(f, ["soon"] * 40), 8, date_of="taken"), "cannot be read as dates"),
    (lambda f: from_folder(write_dated(f, ["2024-01-01"] * 40), 8, date_of="taken"), "1 dates cannot fill 3 splits"),
    (lambda f: from_folder(write_dated(f, [""] + DAYS[1:]), 8, date_of="taken"), "1 samples have no date"),
    (lambda f: from_folder(write_dated(f, patients=["p0"] * 40), 8, group_of="patient", date_of="taken"), "both sides of a date"),
    (lambda f: from_folder(f, 8, date_of=lambda file: file.nothing), "date_of fails for a/00.png"),
])
def test_lists_that_cannot_be_split_are_refused(folder, make, words):
    with pytest.raises(FastcourseError, match=words): make(folder)
