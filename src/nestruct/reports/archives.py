"""Run folders packed into one file, and read back as if the file were a folder.

An archive is a tar file, compressed by xz or gzip, of the files that reports read. It is untrusted
input: an archive that holds more, or names more, than run folders do is refused as a whole, in one
sentence, before any of its content is used.
"""

import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from nestruct.errors import InputError
from nestruct.files import write_whole

# The files of a run folder that reports read. Checkpoints are not among them.
RUN_FILES = (
    "config.toml",
    "metrics.jsonl",
    "structures.jsonl",
    "environment.json",
    "details.json",
    "attachment.json",
)
MOST_MEMBERS = 100_000
MOST_BYTES = 512 * 2**20  # of the tar file, unpacked
MOST_BYTES_EACH = 64 * 2**20
MOST_PARTS = 5  # of a member's path: four folders, and the file
_OPEN: dict[str, Callable[..., Any]] = {".tar.xz": lzma.open, ".tar.gz": gzip.open}
_BROKEN = (EOFError, MemoryError, OSError, RecursionError, ValueError)
_BROKEN_FILES = (*_BROKEN, lzma.LZMAError, zlib.error, tarfile.TarError)


def is_archive(path: Path) -> bool:
    """True if a file's name is that of an archive of runs."""
    return path.name.endswith(tuple(_OPEN)) and path.is_file()


def pack_runs(folders: Iterable[str | Path], file: str | Path) -> None:
    """Packs run folders, without their checkpoints, into one ``.tar.xz``.

    The same run files give the same bytes: members are sorted, and carry no time and no owner. They
    are named from the innermost folder that holds all of the runs.

    Args:
        folders: Run folders.
        file: The archive to write.

    Raises:
        InputError: There is no folder, or one of them is no run.
    """
    paths = sorted({Path(folder).resolve() for folder in folders})
    if not paths:
        raise InputError("No run folder was given; name at least one.")
    for path in paths:
        if not (path / "config.toml").is_file():
            raise InputError(f"{path} is not a run folder: it has no config.toml; leave it out.")
    above = Path(os.path.commonpath([path.parent for path in paths]))
    deepest = max(paths, key=lambda path: len(path.relative_to(above).parts))
    if len(deepest.relative_to(above).parts) >= MOST_PARTS:
        raise InputError(
            f"{deepest} lies too deep below {above}: pack runs that lie closer together."
        )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            for name in sorted(RUN_FILES):
                if (path / name).is_file() and not (path / name).is_symlink():
                    content = (path / name).read_bytes()
                    member = tarfile.TarInfo((path / name).relative_to(above).as_posix())
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    write_whole(Path(file), lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack_runs(file: str | Path, folder: str | Path) -> None:
    """Unpacks the run files of an archive into a folder of the caller's own.

    Members with other names than run files have are checked like the others and left out.

    Args:
        file: A ``.tar.xz`` or ``.tar.gz``.
        folder: An empty folder that no one else writes to.

    Raises:
        InputError: The archive is broken, too large, or names what a run folder cannot have.
    """
    file, folder = Path(file), Path(folder)
    files = _read(file)
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be unpacked ({error}); make it again.") from None


def _read(file: Path) -> dict[PurePosixPath, bytes]:
    """The run files of an archive, by their paths in it."""
    found: dict[PurePosixPath, bytes] = {}
    seen: set[PurePosixPath] = set()
    try:
        data = _unpacked(file)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for number, member in enumerate(tar, start=1):
                if number > MOST_MEMBERS:
                    raise _refusal(file, f"it has more than {MOST_MEMBERS:,} members")
                path = PurePosixPath(member.name)
                why = _why_refused(member, path)
                if not why and path in seen and not member.isdir():
                    why = "is in it twice"
                if why:
                    raise _refusal(file, f"its member {member.name!r} {why}")
                seen.add(path)
                content = tar.extractfile(member) if path.name in RUN_FILES else None
                if content is not None:
                    found[path] = content.read()
            # tarfile takes a header that it cannot read for the end.
            if data[tar.offset :].strip(b"\0"):
                raise tarfile.ReadError("a member's header cannot be read")
    except InputError:
        raise
    except _BROKEN_FILES as error:
        message = f"{file} is broken or no archive ({error}); copy or make it again."
        raise InputError(message) from None
    return found


def _unpacked(file: Path) -> bytes:
    """The tar file in an archive, read no further than it may be long."""
    opened = next(opener for suffix, opener in _OPEN.items() if file.name.endswith(suffix))
    with opened(file, "rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise _refusal(file, f"unpacked it is larger than {MOST_BYTES // 2**20} MB")
    return data


def _why_refused(member: tarfile.TarInfo, path: PurePosixPath) -> str:
    """What is wrong with a member of an archive; empty if nothing is."""
    if path.is_absolute() or ".." in path.parts:
        return "names a place outside of it"
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    if not (plain or member.isdir()):
        return "is neither a file nor a folder"
    if len(path.parts) > MOST_PARTS:
        return f"lies more than {MOST_PARTS} levels deep"
    if not 0 <= member.size <= MOST_BYTES_EACH:
        return f"is larger than {MOST_BYTES_EACH // 2**20} MB"
    return ""


def _refusal(file: Path, why: str) -> InputError:
    return InputError(f"{file} is refused as an archive of runs: {why}; pack the run folders anew.")
