"""Checkpoints as a malicious stranger would make them: every checksum is right."""

import hashlib
import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch

from nestruct.training.run.checkpoint import _checksum

Edit = Callable[[Path], None]
LAST = "checkpoints/last"
NAN, INF = {"$float": "nan"}, {"$float": "-inf"}
DEEP = "[" * 200_000
HTML = "</script><img src=x onerror=alert(1)>\x1b[2J\ud800"


class Case(NamedTuple):
    """A crafted run folder."""

    name: str
    base: str  # nes, nvil or parser
    edit: Edit


def cases():
    """All of them."""
    for some in (_loops, _states, _optimizers, _schedulers, _estimators, _models, _headers):
        yield from some()


def edit_state(run: Path, change: Callable[[dict], Any], name: str = LAST) -> None:
    """Changes state.json, and makes its checksum right."""
    for file in sorted(run.glob(f"{name}*/state.json")):
        state = json.loads(file.read_text())
        change(state)
        state["checksum"] = _checksum(state)
        file.write_text(json.dumps(state))


def edit_tensors(run: Path, part: str, change: Callable[[dict], Any]) -> None:
    """Changes the tensors of all checkpoints, and makes the checksums right."""
    for file in run.glob(f"checkpoints/*/{part}.safetensors"):
        tensors = safetensors.torch.load(file.read_bytes())
        change(tensors)
        put_bytes(file, part, safetensors.torch.save(tensors))


def put_bytes(file: Path, part: str, content: bytes) -> None:
    """Other bytes in place of a checkpoint's tensors."""
    file.write_bytes(content)
    checksum = hashlib.sha256(content).hexdigest()
    name = f"checkpoints/{file.parent.name}"
    edit_state(file.parents[2], lambda state: state["checksums"].update({part: checksum}), name)


def goes_on(state: dict) -> Any:
    """The run was not at its end."""
    state["loop"]["reason"] = state["loop"]["test"] = None


def _state_case(name: str, change: Callable[[dict], Any], base: str = "nes") -> Case:
    def edit(run: Path) -> None:
        edit_state(run, lambda state: [goes_on(state), change(state)])

    return Case(name, base, edit)


def put(tree: Any, path: tuple, value: Any) -> Any:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def _loops():
    """Every entry of where the run was, with types and sizes that it cannot have."""
    junk = ["x", -1, 1.5, True, None, [], {}, 10**18, 2**63, NAN, INF, [[1]], {"a": "b"}]
    names = "step evaluations decoded solved failed seconds initial best best_step unimproved"
    for place, name in enumerate([*names.split(), "test", "reason", "threads", "lines"]):
        for number, value in enumerate(junk):
            if (place + number) % 2 == 0 or name in ("step", "threads", "lines"):
                yield _state_case(
                    f"loop {name} {value}", partial(put, path=("loop", name), value=value)
                )
    tables = {
        "threads": [0, 1025, 100_000_000],
        "step": [2, 4, 10**15],
        "reason": ["finished", "interrupted", "x" * 10**6, HTML],
        "lines": [
            {"../outside/thesis.txt": 0},
            {"/etc/hostname": 0, "metrics.jsonl": 0},
            {"metrics.jsonl": -1},
            {"metrics.jsonl": 10**18},
            {"metrics.jsonl": "3"},
            {"checkpoints/last/state.json": 0},
        ],
        "best": [{"loss": "x"}, {"loss": NAN}, {"other": 1.0}, {"loss": [1]}, {"loss": True}],
        "seconds": [1e308],
        "more": [1],
    }
    for name, values in tables.items():
        for value in values:
            shown = str(value)[:40]
            yield _state_case(
                f"loop: {name} {shown}", partial(put, path=("loop", name), value=value)
            )
    yield _state_case("loop without step", lambda state: state["loop"].pop("step"))
    yield _state_case("loop a list", lambda state: state.update(loop=[1]))
    yield _state_case("loop wrapped", lambda state: state.update(loop={"$tuple": [1]}))


def _states():
    """state.json as a whole."""
    for value in (2, "1", None, [], -1, 1.0, True, 10**30, {"a": 1}):
        yield _state_case(f"format {value}", lambda s, value=value: s.update(format=value))
    for value in ({}, [], None, {"model": 1, "optimizer": 2, "estimator": 3}, "x"):
        yield _state_case(f"checksums {value}", lambda s, value=value: s.update(checksums=value))
    trees = {
        "missing tensor": {"$tensor": "nowhere"},
        "tensor a list": {"$tensor": [1]},
        "tuple a number": {"$tuple": 5},
        "items no pairs": {"$items": [1, 2]},
        "items a list as key": {"$items": [[[1], 2]]},
        "counter of words": {"$counter": [["a", "b"]]},
        "float a word": {"$float": "x"},
        "unknown kind": {"$import": "os"},
        "a list": [1, 2],
        "a number": 3,
        "nothing": None,
        "two dollars": {"$tensor": "a", "$tuple": []},
    }
    for part in ("model", "optimizer", "estimator"):
        for name, tree in trees.items():
            yield _state_case(f"{part} {name}", lambda s, p=part, t=tree: s.update({p: t}))
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    yield _state_case("100 levels", lambda state: state.update(model=deep))
    texts = {
        "200,000 brackets": DEEP,
        "200,000 braces": '{"a":' * 200_000,
        "a list": "[]",
        "a word": '"x"',
        "a number": "7",
        "5,000 digits": "9" * 5000,
        "empty": "",
        "NaN": '{"format": NaN}',
        "a BOM": "\ufeff{}",
    }
    for name, text in texts.items():
        yield Case(f"state.json {name}", "nes", partial(write_all, name="state.json", text=text))


def write_all(run: Path, name: str, text: str) -> None:
    """The same text in all files of a name."""
    for file in run.rglob(name):
        file.write_text(text, encoding="utf-8")


def _optimizers():
    """The optimizer's state and options."""
    where = ("optimizer", "optimizer")
    for index in (999, -1, "x", 2**62, True, None, 1.5, [0]):
        yield _state_case(
            f"optimizer index {index}",
            lambda s, i=index: put(s, (*where, "state", "$items", 0, 0), i),
        )
    for entry, values in {
        "step": ["x", None, [1], 5],
        "exp_avg": ["x", None, 1.0, {"$tensor": "optimizer.state.0.step"}],
        "exp_avg_sq": [{"$tensor": "optimizer.state.2.exp_avg"}, {}],
        "more": ["x"],
    }.items():
        for value in values:
            yield _state_case(
                f"optimizer {entry} {value}",
                lambda s, e=entry, v=value: put(s, (*where, "state", "$items", 0, 1, e), v),
            )
    options = {
        "lr": ["x", NAN, INF, -1, 1e300, [1], None, {"$tensor": "optimizer.state.0.step"}],
        "betas": [[2, 2], [-1, 0.9], "ab", [0.9], [0.9, 0.9, 0.9], {"$tuple": [NAN, NAN]}],
        "eps": [-1, "x", 0],
        "weight_decay": [-1, 1e300, "x"],
        "fused": [True, "x"],
        "foreach": [True, 5],
        "capturable": [True, 1],
        "amsgrad": [True],
        "maximize": ["x"],
        "differentiable": [True],
        "params": [[0, 0], "x", None, [999], []],
        "initial_lr": ["x", NAN],
        "decoupled_weight_decay": [True],
        "step": ["x"],
    }
    for name, values in options.items():
        for value in values:
            yield _state_case(
                f"optimizer option {name} {value}",
                lambda s, n=name, v=value: put(s, (*where, "param_groups", 0, n), v),
            )
    for betas in ([2, 2], [-1, -1]):

        def before_any_step(state, betas=betas):
            put(state, (*where, "state"), {})
            put(state, (*where, "param_groups", 0, "betas"), betas)

        yield _state_case(f"optimizer without moments, betas {betas}", before_any_step)
    for name, value in {"empty": [], "a table": {}, "two": [{}, {}], "a word": "x"}.items():
        yield _state_case(
            f"optimizer groups {name}", lambda s, v=value: put(s, (*where, "param_groups"), v)
        )
    shapes = {"one": torch.ones(1), "scalar": torch.ones(()), "large": torch.ones(3, 999)}
    for name, tensor in shapes.items():
        for moment in ("exp_avg", "step"):

            def change(tensors: dict, tensor=tensor, moment=moment) -> None:
                if f"optimizer.state.0.{moment}" in tensors:
                    tensors[f"optimizer.state.0.{moment}"] = tensor.clone()

            yield _tensor_case(f"optimizer {moment} of shape {name}", "optimizer", change)
    for name, dtype in {"complex": torch.complex64, "int": torch.int8, "half": torch.half}.items():
        yield _tensor_case(
            f"optimizer moments {name}",
            "optimizer",
            lambda tensors, dtype=dtype: tensors.update(
                {k: v.to(dtype) for k, v in tensors.items()}
            ),
        )
    for value in (-5.0, float("nan"), float("inf")):
        yield _tensor_case(
            f"optimizer at step {value}",
            "optimizer",
            lambda tensors, value=value: [
                v.fill_(value) for k, v in tensors.items() if "step" in k
            ],
        )


def _tensor_case(name: str, part: str, change: Callable[[dict], Any], base: str = "nes") -> Case:
    def edit(run: Path) -> None:
        edit_state(run, goes_on)
        edit_tensors(run, part, change)

    return Case(name, base, edit)


def _schedulers():
    values = {
        "last_epoch": ["x", -5, 10**18, None, [1]],
        "base_lrs": [["x"], [], [1, 2], "x", None, [NAN]],
        "T_max": [0, -1, "x"],
        "eta_min": ["x", NAN],
        "step": [5],
        "optimizer": [{}],
        "get_lr": [1],
        "_last_lr": [["x"]],
        "_step_count": ["x"],
    }
    for name, some in values.items():
        for value in some:
            yield _state_case(
                f"scheduler {name} {value}",
                lambda s, n=name, v=value: put(s, ("optimizer", "scheduler", n), v),
            )
    for value in (None, [], "x", 5):
        yield _state_case(
            f"scheduler {value}", lambda s, v=value: put(s, ("optimizer", "scheduler"), v)
        )


def _estimators():
    plan = {
        "mode": ["x", None, 5, "__import__('os')"],
        "chunk": [0, -1, "x", 10**18, True, 1.5, None],
        "keep": ["x", 2, None],
        "size": [0, 5, "x", 10**18],
        "more": [1],
    }
    for name, values in plan.items():
        for value in values:
            yield _state_case(
                f"plan {name} {value}", lambda s, n=name, v=value: put(s, ("estimator", n), v)
            )
    for name, value in {
        "mean a word": ("mean", "x"),
        "variance a list": ("variance", [1]),
        "network a number": ("network", 5),
        "network empty": ("network", {}),
        "no mean": ("mean", {"$tensor": "network.0.weight"}),
    }.items():
        yield _state_case(
            f"nvil {name}", lambda s, v=value: put(s, ("estimator", v[0]), v[1]), "nvil"
        )
    for name, tensor in {
        "of width 10**8": torch.empty(0, 10**8),
        "of width 2**40": torch.empty(0, 2**40),
        "of no width": torch.empty(100, 0),
        "a scalar": torch.ones(()),
    }.items():
        yield _tensor_case(
            f"nvil network {name}",
            "estimator",
            lambda t, tensor=tensor: t.update({"network.0.weight": tensor}) if t else None,
            "nvil",
        )


def _models():
    name = "encoder.score.weight"
    changes = {
        "missing": lambda t: t.pop(name),
        "one more": lambda t: t.update(more=torch.ones(2)),
        "larger": lambda t: t.update({name: torch.ones(7, 7)}),
        "scalar": lambda t: t.update({name: torch.ones(())}),
        "empty": lambda t: t.update({name: torch.ones(0)}),
        "NaN": lambda t: [v.fill_(float("nan")) for v in t.values()],
        "infinite": lambda t: [v.fill_(float("inf")) for v in t.values()],
        "1e38": lambda t: [v.fill_(1e38) for v in t.values()],
        **{
            str(dtype): lambda t, d=dtype: t.update({k: v.to(d) for k, v in t.items()})
            for dtype in (torch.complex64, torch.int64, torch.bool, torch.float64, torch.bfloat16)
        },
    }
    for what, change in changes.items():
        yield _tensor_case(f"parameters {what}", "model", change)
    for value in ("x", 5, None, [1], {"a": 1}):
        yield _state_case(f"parameter {value}", lambda s, v=value: put(s, ("model", name), v))
    yield _state_case("extra state", lambda s: put(s, ("model", "_extra_state"), {"a": 1}))

    def words(what: str, path: tuple, value: Any) -> Case:
        def edit(run: Path) -> None:
            for kind in ("last", "best"):
                edit_state(
                    run,
                    lambda state: (
                        goes_on(state),
                        put(state, ("model", "_extra_state", *path), value),
                    ),
                    f"checkpoints/{kind}",
                )

        return Case(f"vocabulary {what}", "parser", edit)

    for what, path, value in [
        ("word a number", ("words", 3), 5),
        ("words a text", ("words",), "abc"),
        ("no words", ("words",), []),
        ("a word twice", ("words", 4), "<root>"),
        ("counts negative", ("counts", 2), -3),
        ("counts words", ("counts",), ["a"]),
        ("counts true", ("counts", 2), True),
        ("counts 2**63", ("counts", 2), 2**63),
        ("outputs 10**18", ("num_outputs",), 10**18),
        ("outputs -1", ("num_outputs",), -1),
        ("outputs a word", ("num_outputs",), "x"),
        ("labels with tabs", ("labels", 0), "a\tb\n"),
        ("labels numbers", ("labels", 0), 3),
        ("no labels", ("labels",), []),
        ("word with HTML", ("words", 5), HTML),
        ("more", ("more",), 1),
    ]:
        yield words(what, path, value)
    for what, tensor in {"no columns": torch.empty(9, 0), "wide": torch.empty(0, 2**40)}.items():
        yield _tensor_case(
            f"vectors {what}", "model", lambda t, v=tensor: t.update(vectors=v), "parser"
        )


def _headers():
    """safetensors files whose headers lie."""

    def file(header: Any, data: bytes = b"\0" * 16) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    def entry(shape: list, offsets: list, dtype: str = "F32") -> dict:
        return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}

    contents = {
        "nothing": b"",
        "seven bytes": b"\0" * 7,
        "a header of 2**62 bytes": struct.pack("<Q", 2**62),
        "a header of 2**64 - 1 bytes": b"\xff" * 8 + b"{}",
        "no JSON": file(b"{{{{"),
        "200,000 brackets": file(DEEP.encode()),
        "a shape of 2**62": file(entry([2**31, 2**31], [0, 16])),
        "a shape of 2**64": file(entry([2**32, 2**32], [0, 16])),
        "no data but 2**62 rows": file(entry([2**62, 0], [0, 0]), b""),
        "offsets beyond": file(entry([4], [0, 10**12])),
        "offsets backwards": file(entry([4], [16, 0])),
        "negative offsets": file(entry([4], [-16, 0])),
        "negative shape": file(entry([-4], [0, 16])),
        "a shape of words": file(entry(["x"], [0, 16])),
        "another dtype": file(entry([4], [0, 16], "PICKLE")),
        "float8": file(entry([16], [0, 16], "F8_E4M3")),
        "twice the same": file({**entry([4], [0, 16]), "v": entry([4], [0, 16])["w"]}),
        "a hole": file(entry([2], [8, 16])),
        "metadata a list": file({"__metadata__": [1], **entry([4], [0, 16])}),
        "many dimensions": file(entry([1] * 5000, [0, 4]), b"\0" * 4),
        "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01.",
    }
    for name, content in contents.items():

        def edit(run: Path, content=content) -> None:
            edit_state(run, goes_on)
            for part in ("model", "optimizer"):
                for path in run.glob(f"checkpoints/*/{part}.safetensors"):
                    put_bytes(path, part, content)

        yield Case(f"safetensors: {name}", "nes", edit)
