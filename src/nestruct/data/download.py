"""Published data sets, fetched by name into the folder ``NESTRUCT_DATA``, as they were published.

The readers take the published formats, so nothing is converted. A file takes its name once it is
whole and its checksum is right. What came of a download that was broken off is kept beside it, if
the server says how to recognise the file; the same call then goes on where it stopped. Needs
pooch, the extra ``nestruct[data]``.
"""

import contextlib
import fcntl
import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nestruct.errors import InputError
from nestruct.files import make_folder

_PIECE = 2**18  # bytes
_PLAIN = {"Accept-Encoding": "identity"}  # a packed file stays packed
_TIMEOUT = 30.0  # seconds without a byte
_NO_HEAD = (403, 405, 501)  # of servers that answer to GET only


@dataclass(frozen=True)
class Remote:
    """A file of a data set.

    Args:
        address: Where it is published.
        path: Where it belongs, below ``NESTRUCT_DATA``.
        md5: Its checksum, where the publisher's is known.
        unpacked_md5: That of what is in the gzip file.
    """

    address: str
    path: str
    md5: str | None = None
    unpacked_md5: str | None = None

    @property
    def verified(self) -> bool:
        """Whether the publisher's checksum is known."""
        return bool(self.md5 or self.unpacked_md5)


class Progress:
    """How far a download is; what pooch calls a progress bar."""

    def __init__(self) -> None:
        self.name, self.begun, self.bytes, self.total = "", 0, 0, 0  # begun: had before

    def update(self, count: int) -> None:
        """More bytes came."""
        self.bytes += count

    def reset(self) -> None:
        """Begins to count anew."""
        self.bytes = 0

    def close(self) -> None:
        """Nothing is left to do."""


def target_of(remote: Remote) -> Path:
    """Where a file belongs.

    Raises:
        InputError: ``NESTRUCT_DATA`` is not set.
    """
    root = os.environ.get("NESTRUCT_DATA")
    if not root:
        raise InputError(
            "The environment variable NESTRUCT_DATA is not set: set it to the folder that data "
            "sets are to be kept in."
        )
    return Path(root) / remote.path


def size_of(remote: Remote) -> int | None:
    """The bytes of a file, as its server says; None where it does not.

    Raises:
        InputError: The server cannot be reached, or does not have the file.
    """
    requests = _requests()
    with _said(remote):
        answer = requests.head(
            remote.address, headers=_PLAIN, timeout=_TIMEOUT, allow_redirects=True
        )
        if answer.status_code in _NO_HEAD:
            return None
        answer.raise_for_status()
    length = answer.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else None


def fetch(remote: Remote, progress: Progress | None = None) -> str:
    """Downloads a file to where it belongs, or what is missing of it; its SHA-256.

    Raises:
        InputError: It cannot be had whole, or its checksum is another.
    """
    requests = _requests()
    target = target_of(remote)
    progress = Progress() if progress is None else progress
    progress.name = target.name
    make_folder(target.parent)
    with _Part(target) as part, _said(remote, part):
        try:
            _download(remote, part, progress)
        except requests.HTTPError as error:
            if error.response.status_code != 416 or not part.size:  # of which there is no rest
                raise
            part.empty()
            _download(remote, part, progress)
        if progress.total and progress.begun + progress.total != part.size:
            raise requests.exceptions.ChunkedEncodingError  # old urllib3 says nothing
        try:
            _check(remote, part.path)
        except InputError:
            part.empty()
            raise
        os.fsync(part.file.fileno())
        with part.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        part.path.chmod(0o644)
        os.replace(part.path, target)
    return digest


def _download(remote: Remote, part: "_Part", progress: Progress) -> None:
    """Adds to a part what it lacks, or all of it where the server has another file by now."""
    requests = _requests()
    import pooch

    begun = part.size

    def begin(answer: Any, *_: Any, **__: Any) -> None:
        if answer.status_code == 206:
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
                part.empty()
                raise requests.exceptions.ChunkedEncodingError
            progress.begun = begun
        elif answer.ok and not answer.is_redirect:
            part.empty()
            part.name_version(answer.headers)

    pooch.get_logger().setLevel("ERROR")
    progress.begun = progress.bytes = 0
    rest = {"Range": f"bytes={begun}-", "If-Range": part.version()} if begun else {}
    download = pooch.HTTPDownloader(
        progressbar=progress,
        chunk_size=_PIECE,
        headers=_PLAIN | rest,
        timeout=_TIMEOUT,
        hooks={"response": begin},
    )
    download(remote.address, part.file, None)
    part.file.flush()


class _Part:
    """What has come of a file so far; only one process at a time has it."""

    file: BinaryIO

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f".{target.name}.part")
        self._tag = target.with_name(f".{target.name}.version")

    def __enter__(self) -> "_Part":
        self.file = self.path.open("ab")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self.file.fileno()), os.stat(self.path)):
                raise OSError  # the other one was ready at this moment
        except OSError:
            self.file.close()
            raise InputError(
                f"{self.path} is being written by another process: wait until it has the file."
            ) from None
        if not self.version():
            self.empty()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.size or not self.version() or not self.path.exists():
            self.path.unlink(missing_ok=True)
            self._tag.unlink(missing_ok=True)
        self.file.close()

    @property
    def size(self) -> int:
        """Bytes that are there."""
        self.file.flush()
        return os.fstat(self.file.fileno()).st_size

    def empty(self) -> None:
        """Forgets what came."""
        self.file.truncate(0)

    def version(self) -> str:
        """What the server called the file that this is a part of; empty where it did not say."""
        try:
            return self._tag.read_text(encoding="ascii")
        except (OSError, ValueError):
            return ""

    def name_version(self, headers: Any) -> None:
        """Remembers which file the server is sending."""
        tag = headers.get("ETag", "")
        tag = headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag
        self._tag.write_text(tag if tag.isascii() and tag.isprintable() else "", encoding="ascii")


def check_room(total: int, folder: Path) -> None:
    """Raises unless so many bytes have room where a folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if total > free:
        raise InputError(
            f"{total / 1e6:,.0f} MB are to be fetched, and {folder} has room for {free / 1e6:,.0f} "
            "MB: free some, or set NESTRUCT_DATA to another folder."
        )


def _check(remote: Remote, file: Path) -> None:
    """Raises where a file is not what was published."""
    for wanted, packed in ((remote.md5, True), (remote.unpacked_md5, False)):
        if wanted is None:
            continue
        try:
            with file.open("rb") if packed else gzip.open(file) as content:
                digest: Any = hashlib.md5(usedforsecurity=False)
                for piece in _pieces(content):
                    digest.update(piece)
        except (OSError, EOFError, zlib.error):
            raise InputError(
                f"{remote.address} gave no whole gzip file: it was not kept; try again later."
            ) from None
        if digest.hexdigest() != wanted:
            raise InputError(
                f"{remote.address} gave a file with the MD5 {digest.hexdigest()}, and {wanted} was "
                "published: it was not kept; try again, or get the file elsewhere."
            )


def _pieces(file: Any) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _requests() -> Any:
    """The package that speaks HTTP; it comes with pooch."""
    try:
        import pooch  # noqa: F401
        import requests
    except ImportError:
        raise InputError(
            "Downloads need pooch: pip install 'nestruct[data]'; or get the files by hand."
        ) from None
    return requests


@contextlib.contextmanager
def _said(remote: Remote, part: _Part | None = None) -> Iterator[None]:
    """Within this context, what goes wrong on the way is one sentence."""
    requests = _requests()
    address, by_hand = remote.address, f"put the file at {target_of(remote)} by hand"
    try:
        yield
    except requests.HTTPError as error:
        status = f"{error.response.status_code} {error.response.reason}"
        raise InputError(
            f"{address}: the server says {status}; the address may have changed: look for it, and "
            f"{by_hand}."
        ) from None
    except requests.exceptions.ChunkedEncodingError:
        kept = part is not None and part.size and part.version()
        how = "the same command goes on from there" if kept else "nothing was kept: try again"
        raise InputError(f"{address}: the download broke off; {how}, or {by_hand}.") from None
    except requests.RequestException as error:
        raise InputError(
            f"{address} cannot be reached ({type(error).__name__}): where a proxy is needed, set "
            f"HTTPS_PROXY; without a network, {by_hand}."
        ) from None
