"""Data by name, from a real server on this machine: whole files, or none and one sentence."""

import gzip
import http.server
import os
import sys
import threading
from dataclasses import replace
from hashlib import md5, sha256
from typing import Any

import numpy as np
import pytest
from toys import run_command as run

from nestruct.data import CATALOGUE, Images, Treebanks
from nestruct.data.download import Remote, _Part, fetch, size_of
from nestruct.data.embeddings import read_embeddings
from nestruct.data.treebank import sentence_of
from nestruct.errors import InputError

pytest.importorskip("pooch")


def idx(images: int) -> bytes:
    sizes = np.array([images, 28, 28], ">u4").tobytes()
    pixels = np.random.default_rng(0).integers(0, 256, images * 784, np.uint8).tobytes()
    return gzip.compress(bytes([0, 0, 8, 3]) + sizes + pixels)


FILES = {
    "/train-images-idx3-ubyte.gz": idx(12),
    "/t10k-images-idx3-ubyte.gz": idx(3),
    "/gl_ctg.conllu": bytes(sentence_of(["O", "can"], [2, 0], ["det", "root"])) * 4,
    "/cc.gl.300.vec.gz": gzip.compress(b"2 3\nun 1 2 3\ndous 4 5 6\n"),
}


STATE: dict[str, Any] = {}


class Handler(http.server.BaseHTTPRequestHandler):
    """Files; what is below /broken breaks off, /moved leads elsewhere, /shy says no sizes."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.end_headers()
            return
        if self.path.startswith("/shy") and self.command == "HEAD":
            self.send_error(405)
            return
        if self.path.startswith("/tagged"):
            self.send_part(self.path.removeprefix("/tagged"))
            return
        content = FILES.get(self.path.removeprefix("/broken").removeprefix("/shy"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            whole = not self.path.startswith("/broken")
            self.wfile.write(content if whole else content[: len(content) // 2])

    def send_part(self, path: str) -> None:
        """A server with versions and ranges; what it sends breaks off as often as it is to."""
        content, tag, asked = FILES[path], STATE["tag"], self.headers.get("Range", "")
        start = int(asked[6:-1]) if asked and self.headers.get("If-Range") == tag else 0
        STATE["asked"] = [*STATE["asked"], asked]
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            end = len(content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            breaks, STATE["breaks"] = STATE["breaks"], STATE["breaks"] - 1
            self.wfile.write(content[start : start + 1000] if breaks > 0 else content[start:])

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NESTRUCT_DATA", str(tmp_path))
    return tmp_path


def files_in(folder) -> list[str]:
    return sorted(name for _, _, names in os.walk(folder) for name in names)


@pytest.fixture
def served(monkeypatch, address):
    """The catalogue's own entries, with the server's addresses."""

    def serve(name: str, *remotes: Remote, below: str = "") -> None:
        moved = [replace(r, address=f"{address}{below}/{r.address}") for r in remotes]
        monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], files=tuple(moved)))

    return serve


IDX = [name.removeprefix("/") for name in FILES if "idx3" in name]
IMAGES = [Remote(name, f"images/kmnist/{name}") for name in IDX]
PAIR = [Remote("gl_ctg.conllu", f"ud/gl_ctg/gl_ctg-ud-{s}.conllu") for s in ("train", "test")]
VECTORS = Remote("cc.gl.300.vec.gz", "emb/cc.gl.300.vec.gz")


def test_what_is_published_is_read_as_it_is(served, place, capsys):
    for name, remotes in (("kmnist", IMAGES), ("gl_ctg", PAIR), ("vectors-gl", [VECTORS])):
        served(name, *remotes)
        assert run("data", "get", name, "--yes") == 0
        found = capsys.readouterr().out
        assert f"Licence: {CATALOGUE[name].licence}\n" in found
        assert f"{name} is here: " in found
        for remote in remotes:
            digest = sha256(FILES[f"/{remote.address}"]).hexdigest()
            assert f"not verified, none was published to us; SHA-256 {digest}\n" in found
    assert Images(dataset="kmnist").official_sizes() == (12, 3)
    assert len(Treebanks(source="gl_ctg", embeddings="none").splits()["test"]) == 4
    assert read_embeddings(place / VECTORS.path)[0] == ["un", "dous"]
    assert len(files_in(place)) == 5
    assert run("data", "get", "kmnist") == 0  # nothing is left to ask
    assert capsys.readouterr().out == "kmnist is here: 12 + 3 images.\n"


def test_only_what_is_missing_is_fetched(served, place, capsys):
    served("gl_ctg", *PAIR)
    fetch(CATALOGUE["gl_ctg"].files[0])
    assert run("data", "get", "gl_ctg", "--yes") == 0
    assert "ud-train.conllu" not in capsys.readouterr().out
    assert files_in(place) == ["gl_ctg-ud-test.conllu", "gl_ctg-ud-train.conllu"]


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("", 1), ("n", 1), (None, 1)])
def test_the_user_is_asked(served, place, capsys, monkeypatch, answer, status):
    served("vectors-gl", VECTORS)
    if answer is not None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr("builtins.input", lambda _: answer)
    assert run("data", "get", "vectors-gl") == status
    assert len(files_in(place)) == (answer == "y")
    said = capsys.readouterr()
    assert "Nobody can be asked here: say --yes" in said.err or answer is not None


@pytest.mark.parametrize("name", ["md5", "unpacked_md5"])
def test_checksums(address, place, name):
    content = FILES["/cc.gl.300.vec.gz"]
    good = md5(content if name == "md5" else gzip.decompress(content)).hexdigest()
    remote = Remote(f"{address}/cc.gl.300.vec.gz", "emb/a.gz", **{name: good})
    assert fetch(remote) == sha256(content).hexdigest()
    wrong = replace(remote, path="emb/b.gz", **{name: "0" * 32})
    with pytest.raises(InputError, match=f"the MD5 {good}, and 0+ was published: it was not kept"):
        fetch(wrong)
    plain = Remote(f"{address}/gl_ctg.conllu", "emb/c.gz", unpacked_md5=good)
    with pytest.raises(InputError, match="no whole gzip file: it was not kept"):
        fetch(plain)
    assert files_in(place) == ["a.gz"]


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ("/broken", "the download broke off; nothing was kept: try again, or put the file at"),
        ("/none", "the server says 404 Not Found; the address may have changed"),
    ],
)
def test_nothing_is_left_of_a_failed_download(served, place, capsys, below, message):
    served("vectors-gl", VECTORS, below=below)
    assert run("data", "get", "vectors-gl", "--yes") == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert files_in(place) == []
    served("vectors-gl", VECTORS)  # and it can be begun again
    assert run("data", "get", "vectors-gl", "--yes") == 0


@pytest.fixture
def tagged(address, monkeypatch):
    monkeypatch.setattr("nestruct.data.download._PIECE", 500)  # a piece that is not whole is lost
    STATE.update(tag='"one"', breaks=2, asked=[])
    return Remote(f"{address}/tagged/train-images-idx3-ubyte.gz", "a.gz")


def test_a_download_goes_on_where_it_broke_off(tagged, place):
    content = FILES["/train-images-idx3-ubyte.gz"]
    for _ in range(2):
        with pytest.raises(InputError, match="broke off; the same command goes on from there"):
            fetch(tagged)
    assert files_in(place) == [".a.gz.part", ".a.gz.version"]
    assert fetch(tagged) == sha256(content).hexdigest()
    assert STATE["asked"] == ["", "bytes=1000-", "bytes=2000-"]
    assert files_in(place) == ["a.gz"]
    assert (place / "a.gz").read_bytes() == content


@pytest.mark.parametrize("kept", [1000, 10**6])
def test_parts_of_another_file_are_not_gone_on_with(tagged, place, kept):
    """The server has another version by now, or the part is longer than the file."""
    (place / ".a.gz.part").write_bytes(b"x" * kept)
    (place / ".a.gz.version").write_text('"old"' if kept == 1000 else '"one"')
    STATE["breaks"] = 0
    fetch(tagged)
    assert (place / "a.gz").read_bytes() == FILES["/train-images-idx3-ubyte.gz"]
    assert files_in(place) == ["a.gz"]


def test_a_part_with_a_wrong_checksum_is_not_kept(tagged, place):
    STATE["breaks"] = 0
    with pytest.raises(InputError, match="was published: it was not kept"):
        fetch(replace(tagged, md5="0" * 32))
    assert files_in(place) == []


def test_one_process_at_a_time_writes_a_part(tagged, place):
    with _Part(place / "a.gz"), pytest.raises(InputError, match="by another process: wait until"):
        fetch(tagged)
    assert files_in(place) == []


def test_redirects_are_followed(address, place):
    remote = Remote(f"{address}/moved/gl_ctg.conllu", "a")
    assert size_of(remote) == len(FILES["/gl_ctg.conllu"])
    fetch(remote)
    assert (place / "a").read_bytes() == FILES["/gl_ctg.conllu"]


def test_a_server_that_says_no_sizes(served, place, capsys):
    served("vectors-gl", VECTORS, below="/shy")
    assert run("data", "get", "vectors-gl", "--yes") == 0
    assert "(size unknown)" in capsys.readouterr().out
    assert files_in(place) == ["cc.gl.300.vec.gz"]


def test_no_network_and_proxies(place, monkeypatch):
    remote = Remote("http://127.0.0.1:1/a", "a")
    for settings in ({}, {"http_proxy": "http://127.0.0.1:1"}):
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        for call in (size_of, fetch):
            with pytest.raises(InputError, match=r"cannot be reached .*set HTTPS_PROXY; without a"):
                call(remote)
    assert files_in(place) == []


def test_no_room(served, place, capsys, monkeypatch):
    served("vectors-gl", VECTORS)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    assert run("data", "get", "vectors-gl", "--yes") == 1
    assert "has room for 0 MB: free some, or set NESTRUCT_DATA" in capsys.readouterr().err


class Usage:
    free = 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Say which data set to get: fashion-mnist, kmnist, mnist, gl_ctg, "),
        (["omniglot"], "omniglot cannot be fetched by name: make "),
        (["patterns"], "patterns is made here: nestruct data make patterns."),
        (["kmnits"], "did you mean 'kmnist'?"),
    ],
)
def test_what_cannot_be_fetched(capsys, words, message):
    assert run("data", "get", *words) in (1, 2)
    assert message in capsys.readouterr().err


def test_needs_a_place(capsys, monkeypatch):
    monkeypatch.delenv("NESTRUCT_DATA")
    assert run("data", "get", "gl_ctg") == 1
    assert "set it to the folder that data sets are to be kept in" in capsys.readouterr().err


def test_the_list_shows_licences_and_what_can_be_fetched(capsys):
    assert run("data", "list") == 0
    found = capsys.readouterr().out
    assert "; published under CC BY-NC-SA 3.0, https://github.com/UniversalDep" in found
    assert "or: nestruct data get gl_ctg;" in found


def test_every_read_set_has_a_licence_and_a_home_and_stays_in_its_folder():
    for name, entry in CATALOGUE.items():
        assert bool(entry.licence) == bool(entry.home) == (entry.make is None), name
        for remote in entry.files:
            assert remote.address.startswith("http")
            assert not os.path.isabs(remote.path)
            assert ".." not in remote.path
            assert remote.path.endswith(remote.address.rpartition("/")[2])
