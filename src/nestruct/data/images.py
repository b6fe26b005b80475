"""Binarized images of 28 x 28 pixels: FashionMNIST, KMNIST, Omniglot, MNIST.

The data of the paper's categorical auto-encoders (Section 4.3 and the appendix). Binarization is
fixed and by rounding, as in the authors' code: a grey value of 128 or more, of 255, is a 1.

They are read from the folder that the environment variable ``NESTRUCT_DATA`` names, whichever of
these is there first:

- ``images/<name>.npz`` (``fashion_mnist``, ``kmnist``, ``omniglot``, ``mnist``) with ``train`` and
  ``test``: uint8 ``[images, 98]``, what ``np.packbits(pixels, axis=1)`` makes of 0/1 pixels in
  row-major order.
- ``images/<dataset>/`` or ``<dataset>/`` with the official IDX files of grey values,
  ``train-images-idx3-ubyte.gz`` and ``t10k-images-idx3-ubyte.gz``.

Omniglot is published as drawings of 105 x 105 pixels. As in torchvision, ``images_background`` is
``train``, ``images_evaluation`` is ``test``, the background is 1 and the strokes are 0; the size is
brought to 28 x 28 with the bilinear filter of PIL before rounding.
"""

import gzip
import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from nestruct.checks import check_count, check_name
from nestruct.errors import InputError
from nestruct.noise import Purpose, derive_seed

_SIDE = 28
_PACKED = _SIDE * _SIDE // 8  # bytes of a packed image
_IDX = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}
_IDX_IMAGES = bytes([0, 0, 8, 3])  # unsigned bytes, three axes
_LEAST = {"train": 6, "test": 1}  # a sixth of train is for validation
_SOURCES = {
    "fashion-mnist": "github.com/zalandoresearch/fashion-mnist (data/fashion) "
    "or Debian's package dataset-fashion-mnist (/usr/share/datasets/fashion-mnist)",
    "kmnist": "codh.rois.ac.jp/kmnist",
    "mnist": "ossci-datasets.s3.amazonaws.com/mnist",
    "omniglot": "github.com/brendenlake/omniglot",
}


@dataclass(frozen=True, kw_only=True)
class Images:
    """Binarized images; a sixth of the official training set, drawn at random, is for validation.

    Args:
        dataset: ``fashion-mnist``, ``kmnist``, ``omniglot`` or ``mnist``.
        seed: Of the split into train and validation.
        num_train: Only the first so many, for small runs. The split does not depend on it.
        num_validation: The same for validation.
        num_test: The same for test, in the order of the file; Omniglot's is by alphabet.

    Example:
        >>> import torch
        >>> from nestruct.data import Images
        >>> data = Images(dataset="kmnist", num_train=1000)
        >>> data.splits()["train"].shape  # doctest: +SKIP
        torch.Size([1000, 784])
        >>> data.drawing(torch.eye(784)[:1])["images"][0][0]
        '1000000000000000000000000000'
    """

    dataset: str = "fashion-mnist"
    seed: int = 0
    num_train: int | None = None
    num_validation: int | None = None
    num_test: int | None = None

    def __post_init__(self) -> None:
        check_name("Images: the dataset", self.dataset, _SOURCES)
        check_count("Images", "seed", self.seed, 0)
        for name in ("num_train", "num_validation", "num_test"):
            if getattr(self, name) is not None:
                check_count("Images", name, getattr(self, name), 1)

    @property
    def num_inputs(self) -> int:
        """Pixels of an image."""
        return _SIDE * _SIDE

    def splits(self) -> dict[str, Tensor]:
        """``train``, ``validation`` and ``test``: each ``[examples, 784]``, 0/1, float32.

        Raises:
            InputError: ``NESTRUCT_DATA`` is not set, or a file is missing, damaged or not what its
                name says.
        """
        packed = self._read()
        official = len(packed["train"])
        generator = torch.Generator().manual_seed(derive_seed(self.seed, Purpose.IMAGE_SPLIT))
        order = torch.randperm(official, generator=generator).numpy()
        # Rounded once: sizes add up for Omniglot's 19,280 too (16,067 and 3,213).
        num_train = official - official // 6
        return {
            "train": self._first("train", packed["train"], order[:num_train]),
            "validation": self._first("validation", packed["train"], order[num_train:]),
            "test": self._first("test", packed["test"], np.arange(len(packed["test"]))),
        }

    def official_sizes(self) -> tuple[int, int]:
        """How many images were published, ``train`` and ``test``; reads the files.

        Raises:
            InputError: As `splits`.
        """
        packed = self._read()
        return len(packed["train"]), len(packed["test"])

    def drawing(self, batch: Tensor) -> dict[str, list[list[str]]]:
        """What a report needs to draw examples, as plain JSON: ``images``, a string for each row.

        Args:
            batch: ``[examples, 784]``, as in `splits`.
        """
        digits = (batch > 0.5).to("cpu", torch.uint8) + ord("0")
        rows = [bytes(row).decode("ascii") for row in digits.reshape(-1, _SIDE).tolist()]
        return {"images": [rows[i : i + _SIDE] for i in range(0, len(rows), _SIDE)]}

    def _first(
        self, split: str, packed: UInt8[np.ndarray, "images bytes"], places: np.ndarray
    ) -> Tensor:
        """The images at these places, up to the limit; only those are ever unpacked."""
        limit = getattr(self, f"num_{split}")
        if limit is not None and limit > len(places):
            raise InputError(
                f"Images: num_{split} is {limit:,}, but the {split} split of {self.dataset} has "
                f"{len(places):,} images; ask for no more, or leave it out to have them all."
            )
        return torch.from_numpy(np.unpackbits(packed[places[:limit]], axis=1)).float()

    def where(self) -> Path | None:
        """The archive, or the folder of IDX files, that is read; None where there is neither."""
        archive, *folders = self._places()
        if archive.exists():
            return archive
        there = (any((folder / name).exists() for name in _IDX.values()) for folder in folders)
        return next((folder for folder, yes in zip(folders, there, strict=True) if yes), None)

    def remedy(self) -> str:
        """What to do where the data are missing, as the end of a sentence."""
        archive, folder, _ = self._places()
        source = _SOURCES[self.dataset]
        if self.dataset == "omniglot":  # not published in a format that can be read as it is
            return f"make {archive} from the drawings in {source}, as nestruct.data.images says"
        return f"put {' and '.join(_IDX.values())} from {source} into {folder}"

    def _places(self) -> tuple[Path, Path, Path]:
        """Where the data may be: an archive, or one of two folders."""
        root = Path(os.environ.get("NESTRUCT_DATA") or "$NESTRUCT_DATA")
        archive = root / "images" / f"{self.dataset.replace('-', '_')}.npz"
        return archive, root / "images" / self.dataset, root / self.dataset

    def _read(self) -> dict[str, UInt8[np.ndarray, "_ bytes"]]:
        """``train`` and ``test`` as they were published, packed."""
        place, archive = self.where(), self._places()[0]
        if not os.environ.get("NESTRUCT_DATA"):
            raise InputError(
                "Images: the environment variable NESTRUCT_DATA is not set; set it to the folder "
                f"that has images/{archive.name}, or to one of your own and {self.remedy()}."
            )
        if place is None:
            raise InputError(f"Images: {archive} is missing; {self.remedy()}.")
        if place != archive:
            return {split: self._read_idx(split, place / _IDX[split]) for split in _IDX}
        try:
            return _read_archive(archive)
        except _UnusableError as error:
            raise InputError(
                f"Images: {archive} {error}; remove it, and {self.remedy()}."
            ) from None

    def _read_idx(self, split: str, path: Path) -> UInt8[np.ndarray, "images bytes"]:
        try:
            pixels = _read_idx(path) >= 128
            return _check_packed(split, np.packbits(pixels, axis=1))
        except _UnusableError as error:
            source = _SOURCES[self.dataset]
            raise InputError(f"Images: {path} {error}; get it from {source}.") from None


class _UnusableError(Exception):
    """What is wrong with a file, as the end of a sentence that starts with its name."""


def _read_archive(path: Path) -> dict[str, UInt8[np.ndarray, "_ bytes"]]:
    content = _content(path, b"PK", "an npz archive")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            # A damaged header can ask for fewer bytes than there are: their checksum goes unread.
            if archive.zip.testzip() is not None:
                raise zipfile.BadZipFile
            missing = [split for split in _IDX if split not in archive.files]
            if missing:
                there = ", ".join(archive.files) or "nothing"
                raise _UnusableError(f"has no array {missing[0]!r} (but {there})")
            return {split: _check_packed(split, archive[split]) for split in _IDX}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError):
        raise _UnusableError("is damaged or cut short") from None
    except ValueError:
        raise _UnusableError("holds something else than plain arrays") from None


def _read_idx(path: Path) -> UInt8[np.ndarray, "images pixels"]:
    """The grey values in a file of Y. LeCun's IDX format: magic, sizes (big-endian), bytes."""
    content = _content(path, b"\x1f\x8b", "a gzip file")
    try:
        content = gzip.decompress(content)
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise _UnusableError("is damaged or cut short") from None
    if not content.startswith(_IDX_IMAGES) or len(content) < 16:
        start = content[:4].hex() or "nothing"
        raise _UnusableError(
            f"is not an IDX file of images: it starts with {start}, not {_IDX_IMAGES.hex()}"
        )
    count, height, width = (int(size) for size in np.frombuffer(content[4:16], ">u4"))
    if (height, width) != (_SIDE, _SIDE):
        raise _UnusableError(f"has images of {height} x {width} pixels, not {_SIDE} x {_SIDE}")
    if len(content) - 16 != count * height * width:
        raise _UnusableError(
            f"says that it has {count:,} images, but has {len(content) - 16:,} bytes of pixels, "
            f"not {count * height * width:,}"
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(count, height * width)


def _content(path: Path, start: bytes, kind: str) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise _UnusableError("is missing") from None
    except OSError as error:
        raise _UnusableError(f"cannot be read ({error.strerror})") from None
    if not content.startswith(start):
        raise _UnusableError(f"is not {kind}")
    return content


def _check_packed(split: str, array: np.ndarray) -> UInt8[np.ndarray, "images bytes"]:
    if array.dtype != np.uint8 or array.shape[1:] != (_PACKED,):
        raise _UnusableError(
            f"has {array.dtype} of shape {array.shape} as {split!r}, not uint8 of shape "
            f"(images, {_PACKED}), pixels packed with np.packbits"
        )
    if len(array) < _LEAST[split]:
        raise _UnusableError(f"has {len(array)} images in {split!r}, not {_LEAST[split]} or more")
    return array
