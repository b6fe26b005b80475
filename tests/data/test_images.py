"""Binarized images: both formats, splits, limits, and one sentence for whatever is wrong."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from nestruct import InputError
from nestruct.data import Images

NUM_TRAIN, NUM_TEST = 50, 11  # 50 is no multiple of 6, as Omniglot's 19,280 is not
IDX = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
OFFICIAL = {  # train and test, and the shares of ones in them
    "fashion-mnist": (60_000, 10_000, 0.3147, 0.3153),
    "kmnist": (60_000, 10_000, 0.1920, 0.1844),
    "omniglot": (19_280, 13_180, 0.9225, 0.9158),
    "mnist": (60_000, 10_000, 0.1323, 0.1342),
}


@pytest.fixture
def grey() -> dict[str, np.ndarray]:
    """Grey values, no two images alike."""
    generator = np.random.default_rng(0)
    return {
        split: generator.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        for split, size in (("train", NUM_TRAIN), ("test", NUM_TEST))
    }


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    return tmp_path


def pack(grey: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        split: np.packbits((images >= 128).reshape(len(images), -1), axis=1)
        for split, images in grey.items()
    }


def write_npz(path: Path, **arrays: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def zipped(content: bytes) -> bytes:
    """Without the time: workers must collect tests of the same names."""
    return gzip.compress(content, mtime=0)


def idx_bytes(images: np.ndarray, magic: int = 0x803) -> bytes:
    return struct.pack(">IIII", magic, *images.shape) + images.tobytes()


def write_idx(folder: Path, grey: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    for split, name in IDX.items():
        (folder / name).write_bytes(zipped(idx_bytes(grey[split])))
    return folder


def rows(images: torch.Tensor) -> set[bytes]:
    return {np.packbits(image).tobytes() for image in images.numpy().astype(np.uint8)}


def refusal(**options) -> str:
    with pytest.raises(InputError) as caught:
        Images(**options).splits()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


def test_bits_are_grey_values_rounded(root, grey):
    grey["test"][0, 0, :4] = (0, 127, 128, 255)
    write_idx(root / "mnist", grey)
    test = Images(dataset="mnist").splits()["test"]
    expected = torch.round(torch.from_numpy(grey["test"]).float() / 255)
    assert test.dtype == torch.float32
    assert torch.equal(test, expected.reshape(NUM_TEST, 784))
    assert test[0, :4].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("folder", ["images/fashion-mnist", "fashion-mnist"])
def test_both_formats_are_the_same_data(folder, root, grey):
    write_idx(root / folder, grey)
    from_idx = Images().splits()
    for file in (root / folder).iterdir():
        file.write_bytes(b"no longer read")
    write_npz(root / "images/fashion_mnist.npz", **pack(grey))
    from_npz = Images().splits()
    assert list(from_idx) == list(from_npz) == ["train", "validation", "test"]
    for split in from_idx:
        assert torch.equal(from_idx[split], from_npz[split])


def test_a_sixth_is_for_validation_and_nothing_is_lost(root, grey):
    write_npz(root / "images/omniglot.npz", **pack(grey))
    splits = Images(dataset="omniglot").splits()
    assert {name: tuple(split.shape) for name, split in splits.items()} == {
        "train": (42, 784),
        "validation": (8, 784),
        "test": (11, 784),
    }
    train, validation = rows(splits["train"]), rows(splits["validation"])
    assert not train & validation
    assert train | validation == {row.tobytes() for row in pack(grey)["train"]}


def test_the_seed_decides_the_split_and_nothing_else_does(root, grey):
    write_npz(root / "images/kmnist.npz", **pack(grey))
    one, same, other = (Images(dataset="kmnist", seed=seed).splits() for seed in (3, 3, 4))
    for split in one:
        assert torch.equal(one[split], same[split])
    assert rows(one["validation"]) != rows(other["validation"])
    assert torch.equal(one["test"], other["test"])
    torch.manual_seed(123)
    few = Images(dataset="kmnist", seed=3, num_train=5, num_validation=2, num_test=1).splits()
    for split, size in (("train", 5), ("validation", 2), ("test", 1)):
        assert torch.equal(few[split], one[split][:size])


def test_limits_beyond_the_data_are_refused(root, grey):
    write_npz(root / "images/kmnist.npz", **pack(grey))
    assert len(Images(dataset="kmnist", num_train=42).splits()["train"]) == 42
    assert "num_train is 43, but the train split of kmnist has 42 images" in refusal(
        dataset="kmnist", num_train=43
    )
    assert "num_validation is 9, but" in refusal(dataset="kmnist", num_validation=9)


def test_a_drawing_is_plain_json(root, grey):
    write_npz(root / "images/fashion_mnist.npz", **pack(grey))
    data = Images(num_test=3)
    batch = data.splits()["test"]
    assert data.num_inputs == batch.shape[1] == 784
    drawn = json.loads(json.dumps(data.drawing(batch)))["images"]
    assert [len(image) for image in drawn] == [28] * 3
    back = torch.tensor([[[float(pixel) for pixel in row] for row in image] for image in drawn])
    assert torch.equal(back.reshape(3, 784), batch)


@pytest.mark.parametrize("value", [None, ""])
def test_the_folder_must_be_named(value, monkeypatch):
    monkeypatch.delenv("NESTRUCT_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("NESTRUCT_DATA", value)
    message = refusal(dataset="kmnist")
    for part in ("NESTRUCT_DATA is not set", "images/kmnist.npz", "codh.rois.ac.jp", *IDX.values()):
        assert part in message


def test_a_missing_file_is_named_with_its_source_and_its_place(root, grey):
    message = refusal()
    assert f"{root}/images/fashion_mnist.npz is missing" in message
    assert "dataset-fashion-mnist" in message
    assert message.endswith(f"into {root}/images/fashion-mnist.")
    assert "make" in refusal(dataset="omniglot")
    assert "idx" not in refusal(dataset="omniglot")  # there are no such files to be had
    folder = write_idx(root / "mnist", grey)
    (folder / IDX["test"]).unlink()
    assert f"{folder / IDX['test']} is missing; get it from" in refusal(dataset="mnist")


def test_any_damage_to_an_archive_is_found(root, grey):
    small = {"train": grey["train"][:6], "test": grey["test"][:1]}
    path = write_npz(root / "images/mnist.npz", **pack(small))
    whole, expected = path.read_bytes(), Images(dataset="mnist").splits()
    for length in range(0, len(whole), 41):
        path.write_bytes(whole[:length])
        message = refusal(dataset="mnist")
        assert f"{path} is " in message
        assert "damaged or cut short" in message or "not an npz" in message
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        try:
            found = Images(dataset="mnist").splits()
        except InputError:
            refused += 1
        else:  # a time stamp, say
            assert all(torch.equal(found[split], expected[split]) for split in expected)
    assert refused > len(whole) // 3 * 0.7


def test_any_damage_to_an_idx_file_is_found(root, grey):
    small = {"train": grey["train"][:6], "test": grey["test"][:1]}
    path = write_idx(root / "mnist", small) / IDX["test"]
    whole = path.read_bytes()
    for length in range(0, len(whole), 17):
        path.write_bytes(whole[:length])
        message = refusal(dataset="mnist")
        assert f"{path} is " in message
        assert "damaged or cut short" in message or "not a gzip" in message
    for place in range(10, len(whole), 7):  # before: time stamp, file system
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        refusal(dataset="mnist")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"hello", "is not a gzip file"),
        (zipped(b""), "starts with nothing, not 00000803"),
        (zipped(struct.pack(">II", 0x801, 9) + bytes(9)), "starts with 00000801"),
        (zipped(idx_bytes(np.zeros((9, 32, 32), np.uint8))), "images of 32 x 32 pixels"),
        (zipped(idx_bytes(np.zeros((9, 28, 28), np.uint8))[:-1]), "7,055 bytes of pixels"),
        (zipped(idx_bytes(np.zeros((9, 28, 28), np.uint8)) + b"."), "7,057 bytes"),
        (zipped(idx_bytes(np.zeros((3, 28, 28), np.uint8))), "has 3 images in 'train'"),
    ],
)
def test_a_foreign_idx_file_is_refused(content, part, root, grey):
    path = write_idx(root / "images/mnist", grey) / IDX["train"]
    path.write_bytes(content)
    message = refusal(dataset="mnist")
    assert str(path) in message
    assert part in message
    assert "ossci-datasets" in message


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"train": None, "x_train": np.zeros(3)}, "has no array 'train' (but test, x_train)"),
        ({"test": np.zeros((5, 28, 28), np.uint8)}, "uint8 of shape (5, 28, 28) as 'test'"),
        ({"test": np.zeros((5, 98), np.float32)}, "float32 of shape (5, 98) as 'test'"),
        ({"test": np.zeros(98, np.uint8)}, "uint8 of shape (98,) as 'test'"),
        ({"test": np.zeros((0, 98), np.uint8)}, "has 0 images in 'test'"),
        ({"train": np.zeros((5, 98), np.uint8)}, "has 5 images in 'train'"),
        ({"test": np.array([{}], dtype=object)}, "something else than plain arrays"),
    ],
)
def test_a_foreign_archive_is_refused(change, part, root, grey):
    arrays = {name: array for name, array in (pack(grey) | change).items() if array is not None}
    path = write_npz(root / "images/fashion_mnist.npz", **arrays)
    message = refusal()
    assert f"Images: {path} " in message
    assert part in message
    assert "remove it" in message


def test_what_is_no_archive_is_refused(root):
    path = root / "images/omniglot.npz"
    path.mkdir(parents=True)
    assert f"{path} cannot be read (Is a directory)" in refusal(dataset="omniglot")
    path.rmdir()
    with path.open("wb") as file:
        np.save(file, np.zeros((9, 98), np.uint8))
    assert f"{path} is not an npz archive" in refusal(dataset="omniglot")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("FashionMNIST", "did you mean 'fashion-mnist'?"),
        ("omniglott", "did you mean 'omniglot'?"),
        ("cifar-10", "there are: fashion-mnist, kmnist, mnist, omniglot."),
    ],
)
def test_a_bad_name_gets_a_suggestion(name, hint):
    with pytest.raises(InputError) as caught:
        Images(dataset=name)
    assert str(caught.value) == f"Images: the dataset {name!r} is not known; {hint}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("num_train", 0), ("num_validation", 2.5), ("num_test", True)],
)
def test_bad_options_are_named(name, value):
    with pytest.raises(InputError, match=f"{name} must be a whole number"):
        Images(**{name: value})


@pytest.mark.data
@pytest.mark.parametrize("dataset", OFFICIAL)
def test_the_real_files(dataset):
    num_train, num_test, train_share, test_share = OFFICIAL[dataset]
    splits = Images(dataset=dataset).splits()
    num_validation = num_train // 6
    sizes = [num_train - num_validation, num_validation, num_test]
    assert [len(split) for split in splits.values()] == sizes
    for split in splits.values():
        assert split.shape[1] == 784
        assert ((split == 0) | (split == 1)).all()
    ones = splits["train"].double().sum() + splits["validation"].double().sum()
    assert ones / (num_train * 784) == pytest.approx(train_share, abs=5e-5)
    assert splits["test"].double().mean() == pytest.approx(test_share, abs=5e-5)


@pytest.mark.data
@pytest.mark.skipif(not DEBIAN.exists(), reason="no package dataset-fashion-mnist")
def test_the_packages_files_are_the_same_data(monkeypatch):
    ours = Images().splits()
    monkeypatch.setenv("NESTRUCT_DATA", str(DEBIAN.parent))
    for split, theirs in Images().splits().items():
        assert torch.equal(theirs, ours[split])
