"""Text that a stranger may have written: what is no plain, bounded file or text is refused."""

import os

import pytest

from nestruct import untrusted
from nestruct.untrusted import check_regular, parse_json, parse_toml, read_file, read_toml


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_what_is_json_is_read():
    assert parse_json(b'{"a": [1, 2.5, "\xc3\xa9", null, true, NaN, -Infinity]}') == {
        "a": [1, 2.5, "é", None, True, None, None]
    }
    assert parse_json(b"9223372036854775807") == 2**63 - 1
    parse_json(nested(untrusted.DEEPEST))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nested(untrusted.DEEPEST + 1), "nested too deeply"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"9223372036854775808", "too large"),
        (b'{"a": [-99999999999999999999]}', "too large"),
        (b"9" * 5000, "digits"),
        (b"\xff", "utf-8"),
        (b"{", "Expecting"),
        (b"", "Expecting"),
    ],
    ids=range(9),
)
def test_json_that_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "[" * 70 + "]" * 70, "nested too deeply"),
        ("a = 9223372036854775808", "too large"),
        ("a." * 200 + "a = 1", "line 1 has more than 100 dots"),
        ("[a]\nb = 1\n[" + "a." * 200 + "a]", "line 3 has more than 100 dots"),
        ("a = '" + "x" * 2**18 + "'", "larger than 256 kB"),
        ("a = ", "Invalid value"),
    ],
    ids=range(7),
)
def test_toml_that_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_toml(text)


def test_regular_files_of_a_bounded_size(tmp_path):
    file, link = tmp_path / "a.toml", tmp_path / "link"
    file.write_text("a = 1\n")
    link.symlink_to(file)
    assert read_file(file) == read_file(link) == b"a = 1\n"
    assert read_toml(file) == {"a": 1}
    assert check_regular(file) == 6
    with pytest.raises(ValueError, match="larger than"):
        read_file(file, most=5)
    os.truncate(file, 2**40)  # a file with a hole
    with pytest.raises(ValueError, match="larger than 64 MB"):
        read_file(file)


@pytest.mark.parametrize("read", [read_file, read_toml, check_regular])
def test_a_pipe_is_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read("/dev/zero")
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")
