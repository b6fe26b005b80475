"""Archives of runs: packing is reproducible, and what no packer writes is refused."""

import gzip
import io
import lzma
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nestruct.errors import InputError
from nestruct.reports import archives
from nestruct.reports.archives import is_archive, pack_runs, unpack_runs


def make_run(folder: Path, text: str = "seed = 0\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text)
    (folder / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 2.0}\n')
    (folder / "checkpoints" / "last").mkdir(parents=True)
    (folder / "checkpoints" / "last" / "state.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    return folder


def write_tar(file: Path, fill: Callable[[tarfile.TarFile], None]) -> Path:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        fill(tar)
    compress = lzma.compress if file.suffix == ".xz" else gzip.compress
    file.write_bytes(compress(packed.getvalue()))
    return file


def add(tar: tarfile.TarFile, name: str, content: bytes = b"seed = 0\n", **more: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in more.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


def unpacked(file: Path) -> dict[str, bytes]:
    folder = file.parent / "unpacked"
    folder.mkdir()
    unpack_runs(file, folder)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_is_packed_comes_back_without_checkpoints(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "runs" / name) for name in ("a/nes-s0", "a/nes-s1", "b/sst-s0")]
    pack_runs(runs, tmp_path / "runs.tar.xz")
    found = unpacked(tmp_path / "runs.tar.xz")
    assert list(found) == [
        f"{name}/{file}"
        for name in ("a/nes-s0", "a/nes-s1", "b/sst-s0")
        for file in ("config.toml", "metrics.jsonl")
    ]
    assert found["b/sst-s0/config.toml"] == b"seed = 0\n"


def test_the_same_runs_make_the_same_bytes(tmp_path: Path) -> None:
    packed = []
    for when in ("first", "second"):
        runs = [make_run(tmp_path / when / name) for name in ("nes-s0", "nes-s1")]
        pack_runs(runs if when == "first" else runs[::-1], tmp_path / f"{when}.tar.xz")
        packed.append((tmp_path / f"{when}.tar.xz").read_bytes())
    assert packed[0] == packed[1]


def test_only_runs_are_packed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No run folder"):
        pack_runs([], tmp_path / "runs.tar.xz")
    with pytest.raises(InputError, match="it has no config"):
        pack_runs([tmp_path], tmp_path / "runs.tar.xz")


def test_gzip_is_read_and_other_members_are_left_out(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "runs", b"", type=tarfile.DIRTYPE)
        add(tar, "./runs/nes/config.toml")
        add(tar, "runs/nes/weights.bin", b"\0" * 99)

    file = write_tar(tmp_path / "runs.tar.gz", fill)
    assert is_archive(file)
    assert not is_archive(tmp_path)
    assert unpacked(file) == {"runs/nes/config.toml": b"seed = 0\n"}


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("/etc/config.toml", {}, "outside"),
        ("a/../../config.toml", {}, "outside"),
        ("a/config.toml", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "neither a file"),
        ("a/config.toml", {"type": tarfile.LNKTYPE, "linkname": "b"}, "neither a file"),
        ("a/config.toml", {"type": tarfile.CHRTYPE}, "neither a file"),
        ("a/config.toml", {"type": tarfile.FIFOTYPE}, "neither a file"),
        ("a/b/c/d/e/f/config.toml", {}, "levels deep"),
    ],
)
def test_what_reaches_out_of_an_archive_is_refused(
    tmp_path: Path, name: str, more: dict[str, object], why: str
) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "good/config.toml")
        add(tar, name, b"" if more else b"seed = 0\n", **more)

    file = write_tar(tmp_path / "runs.tar.xz", fill)
    with pytest.raises(InputError, match=why):
        unpacked(file)
    assert not any((tmp_path / "unpacked").iterdir())


def test_a_name_stands_once(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "a/config.toml")
        add(tar, "./a/config.toml", b"seed = 1\n")

    with pytest.raises(InputError, match="twice"):
        unpacked(write_tar(tmp_path / "runs.tar.xz", fill))


def test_a_file_is_no_folder_too(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "config.toml")
        add(tar, "config.toml/config.toml")

    with pytest.raises(InputError, match="cannot be unpacked"):
        unpacked(write_tar(tmp_path / "runs.tar.xz", fill))


def test_a_large_member_is_refused(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "a/metrics.jsonl", b"\0" * (archives.MOST_BYTES_EACH + 1))

    with pytest.raises(InputError, match="larger than 64 MB"):
        unpacked(write_tar(tmp_path / "runs.tar.gz", fill))


def test_a_decompression_bomb_is_read_no_further_than_it_may_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.tar.xz"
    file.write_bytes(lzma.compress(b"\0" * 2**26))
    assert file.stat().st_size < 2**14
    monkeypatch.setattr(archives, "MOST_BYTES", 2**20)
    tracemalloc.start()
    with pytest.raises(InputError, match="unpacked it is larger than 1 MB"):
        unpacked(file)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**24


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        for k in range(9):
            add(tar, f"{k}.txt", b"")

    monkeypatch.setattr(archives, "MOST_MEMBERS", 8)
    with pytest.raises(InputError, match="more than 8 members"):
        unpacked(write_tar(tmp_path / "runs.tar.xz", fill))


@pytest.mark.parametrize("suffix", [".tar.xz", ".tar.gz"])
def test_a_broken_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        for k in range(5):
            add(tar, f"{k}/metrics.jsonl", bytes(range(256)) * 40)

    content = write_tar(tmp_path / f"whole{suffix}", fill).read_bytes()
    middle = len(content) // 2
    for k, broken in enumerate(
        (b"", b"hello", content[:-9], content[:middle] + b"?" * 9 + content[middle + 9 :])
    ):
        file = tmp_path / f"{k}{suffix}"
        file.write_bytes(broken)
        with pytest.raises(InputError, match=r"broken or no archive"):
            unpack_runs(file, tmp_path)


def test_a_header_that_cannot_be_read_is_no_end(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        add(tar, "a/config.toml")
        add(tar, "b/config.toml")
    data = bytearray(packed.getvalue())
    data[1024] ^= 1  # the first letter of the second name, which its header's checksum covers
    file = tmp_path / "runs.tar.gz"
    file.write_bytes(gzip.compress(bytes(data)))
    with pytest.raises(InputError, match="header"):
        unpacked(file)


def test_what_lies_too_deep_to_be_read_back_is_not_packed(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b/c/d/e/f"]
    for run in runs:
        run.mkdir(parents=True)
        (run / "config.toml").write_text("seed = 0\n")
    with pytest.raises(InputError, match="lies too deep"):
        pack_runs(runs, tmp_path / "runs.tar.xz")


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret, run = tmp_path / "secret.json", tmp_path / "run"
    secret.write_text('{"secret": 1}')
    run.mkdir()
    (run / "config.toml").write_text("seed = 0\n")
    (run / "environment.json").symlink_to(secret)
    pack_runs([run], tmp_path / "runs.tar.xz")
    unpack_runs(tmp_path / "runs.tar.xz", tmp_path / "back")
    names = [path.name for path in (tmp_path / "back").rglob("*") if path.is_file()]
    assert names == ["config.toml"]
