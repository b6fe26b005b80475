"""Published data sets, fetched by name into the folder ``NESTRUCT_DATA``, as they were published.

The readers take the published formats, so nothing is converted. A file takes its name once it is
whole and its checksum is right; a download that was broken off begins that file anew. Needs pooch,
the extra ``nestruct[data]``.
"""

import contextlib
import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        self.name, self.bytes, self.total = "", 0, 0

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
    """Downloads a file to where it belongs; its SHA-256.

    Raises:
        InputError: It cannot be had whole, or its checksum is another; nothing is left of it then.
    """
    requests = _requests()
    import pooch

    pooch.get_logger().setLevel("ERROR")
    target = target_of(remote)
    progress = Progress() if progress is None else progress
    progress.name, progress.bytes = target.name, 0
    downloader = pooch.HTTPDownloader(
        progressbar=progress, chunk_size=_PIECE, headers=_PLAIN, timeout=_TIMEOUT
    )
    make_folder(target.parent)
    with (
        tempfile.TemporaryDirectory(prefix=".getting-", dir=target.parent) as folder,
        _said(remote),
    ):
        got = Path(pooch.retrieve(remote.address, None, target.name, folder, downloader=downloader))
        if progress.total not in (0, got.stat().st_size):  # old urllib3 says nothing
            raise requests.exceptions.ChunkedEncodingError
        _check(remote, got)
        with got.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        got.chmod(0o644)
        os.replace(got, target)
    return digest


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
def _said(remote: Remote) -> Iterator[None]:
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
        raise InputError(
            f"{address}: the download broke off, and nothing was kept: try again, or {by_hand}."
        ) from None
    except requests.RequestException as error:
        raise InputError(
            f"{address} cannot be reached ({type(error).__name__}): where a proxy is needed, set "
            f"HTTPS_PROXY; without a network, {by_hand}."
        ) from None
