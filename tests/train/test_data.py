"""Data of the user: a table and a folder of images, and what is wrong with them in a line."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from runs import SAME, run_in_forks

from ckptool.errors import CheckpointError, Malformed, NotFound, Unreadable
from ckptool.train import Config, run
from ckptool.train.data import Gratings, housing, read_table, synthetic_houses

NAMES = "CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT MEDV".split()
PLAIN = Config(task="housing", epochs=1, batch_size=4, devices=("cpu",), curves=False, save=("wrapped",))


def table(path, rows=None, names=NAMES):
    rows = rows if rows is not None else [[i + 10 * j for j in range(len(names))] for i in range(12)]
    path.write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n")
    return path


def test_a_table_of_the_user_is_learned(tmp_path):
    random = torch.Generator().manual_seed(0)
    features = torch.randn(60, 13, generator=random)
    rows = torch.cat([features, features.sum(1, keepdim=True)], 1).tolist()
    done = run(replace(PLAIN, data=table(tmp_path / "houses.csv", rows), epochs=8, out=tmp_path / "run"))
    assert done.history[-1].loss < 0.5 * done.history[0].loss


def test_the_column_to_predict_can_be_named(tmp_path):
    path = table(tmp_path / "x.csv")
    features, values = read_table(path, None)
    assert features.shape == (12, 13)
    assert values[:2].tolist() == [[130.0], [131.0]]
    features, values = read_table(path, "ZN")
    assert values[:2].tolist() == [[10.0], [11.0]]
    assert features[0].tolist() == [0.0, *(10.0 * j for j in range(2, 14))]


@pytest.mark.parametrize("encoded", [str.encode, lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()])
def test_a_table_may_come_from_a_spreadsheet(tmp_path, encoded):
    path = table(tmp_path / "x.csv")
    path.write_bytes(encoded(path.read_text() + "\n , \n"))
    assert read_table(path, "CRIM")[1][:2].tolist() == [[0.0], [1.0]]


def test_what_is_learned_has_mean_0_and_deviation_1_where_it_is_learned_from(tmp_path):
    data = housing(replace(PLAIN, samples=100))
    for columns in (data.train.features, data.train.values):
        torch.testing.assert_close(columns.mean(0), torch.zeros(columns.shape[1]), rtol=0, atol=1e-5)
        torch.testing.assert_close(columns.std(0, correction=0), torch.ones(columns.shape[1]), rtol=0, atol=1e-5)
    rows = [[7, *range(i, i + 13)] for i in range(9)]
    data = housing(replace(PLAIN, data=table(tmp_path / "x.csv", rows)))
    assert not data.train.features[:, 0].any()  # a column that is always the same is 0, not infinite
    assert synthetic_houses(PLAIN)[0].shape == (506, 13)


def bad(kind, tmp_path):
    row = list(range(14))
    path = tmp_path / "x.csv"
    if kind == "a column is missing":
        return table(path, [row[:13]], NAMES[:13])
    if kind == "a column too many":
        return table(path, [[*row, 1]], [*NAMES, "EXTRA"])
    if kind in ("nan", "NaN", "inf", "", "much"):
        return table(path, [row, [*row[:5], kind, *row[6:]], row])
    if kind == "a short row":
        return table(path, [row, row[:9]])
    if kind == "no names":
        return table(path, [row], row)
    if kind == "no rows":
        return table(path, [])
    if kind == "twice":
        return table(path, [row], [*NAMES[:13], "CRIM"])
    if kind == "empty":
        path.touch()
    if kind == "bytes":
        path.write_bytes(b"\xff\xfe\x00\x80" * 20)
    return path


BAD = {
    "a column is missing": (NotFound, "has 13 columns; 13 features and a value are needed, 1 missing"),
    "a column too many": (NotFound, "has 15 columns; 13 features and a value are needed, 1 too many"),
    "nan": (Malformed, "line 3, column RM: is nan, which is not a finite number"),
    "NaN": (Malformed, "line 3, column RM: is NaN, which is not a finite number"),
    "inf": (Malformed, "line 3, column RM: is inf, which is not a finite number"),
    "much": (Malformed, "line 3, column RM: is much, which is not a finite number"),
    "": (Malformed, "line 3, column RM: is empty"),
    "a short row": (Malformed, "line 3 has 9 cells, the first 14"),
    "no names": (NotFound, "has no line of column names"),
    "no rows": (Malformed, "has the names of columns, and no rows"),
    "twice": (Malformed, "has several columns 'CRIM'"),
    "empty": (Malformed, "is empty"),
    "bytes": (Unreadable, None),
    "missing": (Unreadable, None),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_table_is_refused_in_a_line_and_nothing_is_written(tmp_path, kind):
    path = bad(kind, tmp_path)
    raised, what = BAD[kind]
    with pytest.raises(raised) as caught:
        run(replace(PLAIN, data=path, out=tmp_path / "run"))
    assert caught.value.where == str(path)
    assert what is None or caught.value.what == what
    assert "\n" not in caught.value.what
    assert list((tmp_path / "run").iterdir()) == []


def test_a_target_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(NotFound) as caught:
        read_table(table(tmp_path / "x.csv"), "PRICE")
    assert caught.value.what == "has no column 'PRICE'"
    assert caught.value.evidence == (f"its columns: {', '.join(NAMES)}",)
    assert caught.value.hint == "--target MEDV"


def test_bad_data_in_a_run_of_several_processes_names_a_rank(forks, tmp_path):
    """That no process is left of a run in which a rank failed is shown in test_launch.py."""
    with pytest.raises(CheckpointError) as caught:
        run_in_forks(forks, replace(PLAIN, strategy="ddp", nproc=2, data=bad("nan", tmp_path), out=tmp_path / "run"))
    rank, rest = caught.value.what.split(" failed: ")
    assert rank in ("rank 0", "rank 1")
    assert rest == f"{tmp_path}/x.csv: line 3, column RM: is nan, which is not a finite number"
    assert caught.value.hint == "fill in or leave out such rows before training"


def test_made_up_images_are_the_same_in_every_process():
    one, other, another = (Gratings(5, (3, 8, 8), 4, seed) for seed in (1, 1, 2))
    for index in range(5):
        assert torch.equal(one[index][0], other[index][0])
        assert one[index][1] == other[index][1]
        assert not torch.equal(one[index][0], another[index][0])


# -- images


@pytest.fixture
def images(tmp_path):
    """A folder of images: bright cats and dark dogs, of several sizes and formats."""
    Image = pytest.importorskip("PIL.Image")
    for name, light in (("cat", 200), ("dog", 40)):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(6):
            suffix = ("png", "jpg", "gif")[number % 3]
            mode = "L" if number == 4 else "RGB"
            Image.new(mode, (20 + number, 30 - number), light + number if mode == "L" else (light,) * 3).save(
                folder / f"{number}.{suffix}"
            )
        (folder / "notes.txt").write_text("no image")
    return tmp_path / "images"


def pictures(images, **options):
    return replace(
        SAME,
        task="imagefolder",
        data=images,
        samples=None,
        batch_size=4,
        image_size=16,
        lr_groups={},
        save=("wrapped",),
        **options,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_the_user_are_learned(images, tmp_path, workers):
    done = run(pictures(images, epochs=4, workers=workers, out=tmp_path / "run"))
    assert done.history[-1].loss < done.history[0].loss
    assert done.history[-1].accuracy in (0.0, 0.5, 1.0)


def test_images_can_be_divided_by_the_user_and_numbered(images, tmp_path):
    from ckptool.train.data import image_folder

    whole = tmp_path / "whole"
    for part in ("train", "test"):
        (whole / part).mkdir(parents=True)
        for name in ("cat", "dog"):
            (whole / part / name).symlink_to(images / name)
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"dog": 0, "cat": 1}))
    data = image_folder(pictures(whole, labels=labels))
    assert data.classes == ("dog", "cat")
    assert (len(data.train), len(data.test)) == (12, 12)
    image, label = data.test[0]
    assert (image.shape, label) == ((3, 16, 16), 1)
    assert image.mean() == pytest.approx(200 / 127.5 - 1, abs=0.02)
    assert image_folder(pictures(images)).classes == ("cat", "dog")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_is_none_is_named(images, tmp_path, workers):
    (images / "dog" / "0.png").write_bytes(b"no image at all")
    with pytest.raises(Unreadable) as caught:
        run(replace(pictures(images, epochs=1, workers=workers, out=tmp_path / "run"), batch_size=1))
    assert caught.value.where == str(images / "dog" / "0.png") or str(images / "dog" / "0.png") in str(caught.value)
    assert "is not an image" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "raised", "what"),
    [
        ("[1, 2]", Malformed, "is not a label map"),
        ('{"cat": 0, "dog": 0}', Malformed, "is not a label map"),
        ('{"cat": 1, "dog": 2}', Malformed, "is not a label map"),
        ('{"cat": 0, "dog"', Malformed, "is not JSON"),
        ('{"cat": 0, "cow": 1}', NotFound, "the class dog has no label"),
        (None, Unreadable, None),
    ],
)
def test_a_bad_label_map_is_refused(images, tmp_path, text, raised, what):
    labels = tmp_path / "labels.json"
    if text is not None:
        labels.write_text(text)
    with pytest.raises(raised) as caught:
        run(pictures(images, labels=labels, out=tmp_path / "run"))
    assert what is None or caught.value.what.startswith(what)


def test_a_folder_without_images_is_refused(tmp_path):
    pytest.importorskip("PIL")
    for make, what in (
        (lambda: None, "is not a folder"),
        (lambda: (tmp_path / "images").mkdir(), "has no folder for a class in it"),
        (lambda: (tmp_path / "images" / "cat").mkdir(), "has 0 images in its folders of classes"),
    ):
        make()
        with pytest.raises(NotFound) as caught:
            run(pictures(tmp_path / "images", out=tmp_path / "run"))
        assert caught.value.what == what
