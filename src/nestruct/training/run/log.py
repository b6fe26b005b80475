"""A log of a run: lines that are only added to, and the SHA-256 of all of them."""

import hashlib
from pathlib import Path

from nestruct.files import GrowingFile


class Log:
    """A log that is open for more lines.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.file = GrowingFile(path)
        self.num_lines = 0
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """The SHA-256 of all lines."""
        return self._digest.hexdigest()

    def take_up(self, count: int, digest: str | None) -> str | None:
        """Cuts the log to the lines that a checkpoint knows; says what is wrong with them.

        Args:
            count: How many lines there were.
            digest: Their SHA-256; None where it is not known.
        """
        kept, wrong = compare_lines(self.file.path.name, self.file.read(), count, digest)
        self.file.cut(len(kept))
        self.num_lines = kept.count(b"\n")
        self._digest = hashlib.sha256(kept)
        return wrong

    def append(self, line: bytes) -> None:
        """Adds a line."""
        self.file.append(line)
        self.num_lines += 1
        self._digest.update(line)


def compare_lines(
    name: str, content: bytes, count: int, digest: str | None
) -> tuple[bytes, str | None]:
    """The first whole lines of a log, and what is wrong with them.

    Args:
        name: Of the log.
        content: All that is in it.
        count: How many lines it had at a checkpoint.
        digest: Their SHA-256; None where it is not known.
    """
    lines = content.split(b"\n")[:-1][:count]  # what follows the last newline is no whole line
    kept = b"".join(line + b"\n" for line in lines)
    if len(lines) < count:
        return kept, f"{name} has lost {count - len(lines)} of its {count} lines."
    if digest not in (None, hashlib.sha256(kept).hexdigest()):
        return kept, f"{name} was changed: its first {count} lines are not those that were written."
    return kept, None
