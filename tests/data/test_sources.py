"""Datasets and loaders: which batches a step and an evaluation see."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import nestruct
from nestruct.data import Loader, Minibatches, Pieces, Rows, make_minibatches, read_data, read_whole

CPU = torch.device("cpu")
X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)


class Table(Dataset):
    """Examples as dictionaries."""

    def __init__(self, size=10):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        return {"x": X[place].numpy(), "y": int(Y[place])}


class Stream(IterableDataset):
    def __init__(self, size=10):
        self.size = size

    def __iter__(self):
        return iter(Y[: self.size])


class Once(IterableDataset):
    """A stream that is empty the second time."""

    def __init__(self):
        self.left = iter(Y)

    def __iter__(self):
        return self.left


class Columns:
    """What the `datasets` package's tables can do, for arrays."""

    def __init__(self, columns, kind=None):
        self.columns, self.format = columns, {"type": kind}
        self.column_names = list(columns)

    def with_format(self, kind):
        return Columns(self.columns, kind)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, places):
        assert self.format["type"] == "numpy"
        return {name: np.array(values)[places] for name, values in self.columns.items()}


def passes(loader, size=None, seed=0):
    return make_minibatches(read_data(loader), size, seed)


def steps(minibatches, *numbers):
    return [batch.tolist() for batch in map(minibatches, numbers)]


def test_tensors_of_a_tensor_dataset_are_the_data():
    found = read_data(TensorDataset(X, Y))
    assert found[0] is X
    assert found[1] is Y


@pytest.mark.parametrize("data", [Table(), Subset(Table(), list(range(10))), Table(10)])
def test_a_dataset_gives_the_rows_that_tensors_would_give(data):
    rows, plain = passes(data, 4, 3), Minibatches({"x": X, "y": Y}, size=4, seed=3)
    assert rows.steps_per_epoch == plain.steps_per_epoch == 2
    for step in (0, 1, 2, 5):
        assert torch.equal(rows(step)["x"], plain(step)["x"])
        assert torch.equal(rows(step)["y"], plain(step)["y"])
    assert torch.equal(passes(data, None)(0)["x"], X)  # all examples, as tensors


def test_a_table_of_columns_gives_tensors_of_the_models_type():
    data = Columns({"x": X.double().tolist(), "y": Y.tolist()})
    rows = read_data(data, torch.float32)
    assert isinstance(rows, Rows)
    batch = rows.select_rows(torch.tensor([3, 1]))
    assert torch.equal(batch["x"], X[[3, 1]])
    assert batch["y"].tolist() == [3, 1]
    with pytest.raises(nestruct.InputError, match=r"The dataset\['text'\] is a numpy array of <U1"):
        read_whole(Columns({"text": ["a", "b"]}), dtype=None, device=CPU, share=False)


@pytest.mark.integrations
def test_a_hugging_face_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    columns = {"x": X.tolist(), "y": Y.tolist(), "text": ["a"] * 10, "bag": [[1] * i for i in Y]}
    table = datasets.Dataset.from_dict(columns)
    plain = table.select_columns(["x", "y"])
    rows, expected = passes(plain, 4, 3), Minibatches({"x": X, "y": Y}, size=4, seed=3)
    for kind in (plain, plain.with_format("torch"), plain.with_format("numpy")):
        rows = passes(kind, 4, 3)
        for step in (0, 1, 2):
            assert torch.equal(rows(step)["x"], expected(step)["x"])
            assert torch.equal(rows(step)["y"], expected(step)["y"])
    whole = read_whole(plain, dtype=torch.float64, device=CPU, share=False)
    assert torch.equal(whole["x"], X.double())
    loader = passes(DataLoader(plain.with_format("torch"), batch_size=5))
    assert torch.equal(loader(0)["x"], X[:5])
    stream = passes(DataLoader(plain.to_iterable_dataset().with_format("torch"), batch_size=5))
    assert torch.equal(stream(1)["y"], Y[:5])  # begins anew where it is asked
    with pytest.raises(nestruct.InputError, match="IterableDataset is a stream of examples"):
        read_data(plain.to_iterable_dataset())
    for name, kind in (("text", "<U1"), ("bag", "object")):
        message = rf"The dataset\['{name}'\] is a numpy array of {kind}"
        with pytest.raises(nestruct.InputError, match=message):
            passes(table.select_columns([name]), 4)(0)
    with pytest.raises(nestruct.InputError, match=r"The data\['train'\] is a Dataset, and"):
        read_data(datasets.DatasetDict(train=plain))


def test_a_dataset_whose_examples_do_not_fit_together():
    class Ragged(Table):
        def __getitem__(self, place):
            return torch.ones(place)

    with pytest.raises(
        nestruct.InputError, match=r"cannot be put together as a batch .*collate_fn"
    ):
        passes(Ragged(), 2)(0)


def test_a_loader_gives_its_batches_again_and_again():
    minibatches = passes(DataLoader(Y, batch_size=4))
    assert minibatches.steps_per_epoch == 3
    order = steps(minibatches, 0, 0, 1, 2, 3)  # the first one also for the estimator to look at
    assert order == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


def test_lists_of_a_loader_become_tuples():
    batch = passes(DataLoader(TensorDataset(X, Y), batch_size=4))(0)
    assert type(batch) is tuple
    assert torch.equal(batch[1], Y[:4])


def test_a_shuffling_loader_has_one_order_for_a_seed_and_leaves_torchs_generator_alone():
    def order(seed, first=0):
        minibatches = passes(DataLoader(Y, batch_size=5, shuffle=True), seed=seed)
        minibatches(0)
        return steps(minibatches, *range(first, first + 4))

    torch.manual_seed(1)
    one, state = order(0), torch.get_rng_state()
    torch.rand(1)
    assert order(0) == one != order(1)
    torch.set_rng_state(state)
    order(0)
    assert torch.equal(torch.get_rng_state(), state)
    assert one[:2] != one[2:]  # every pass has an order of its own
    assert order(0, first=7) != one  # and so has a resumed run
    for two in (one[:2], one[2:], order(0, first=7)[:2]):
        assert sorted([*two[0], *two[1]]) == Y.tolist()


def test_a_stream_has_no_length_and_begins_again():
    minibatches = passes(DataLoader(Stream(), batch_size=5))
    assert minibatches.steps_per_epoch is None
    assert [len(batch) for batch in steps(minibatches, 0, 1, 2)] == [5, 5, 5]
    with pytest.raises(nestruct.InputError, match=r"Stream is a stream of examples.*torch DataL"):
        read_data(Stream())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # torch's workers are forked
def test_workers_of_a_loader():
    loader = DataLoader(Y, batch_size=5, num_workers=1)
    minibatches = passes(loader)
    assert steps(minibatches, 0, 1, 2) == [[*range(5)], [*range(5, 10)], [*range(5)]]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(0), batch_size=5),
        DataLoader(Table(4), batch_size=5, drop_last=True),
    ],
)
def test_a_loader_that_ends_at_once(loader):
    with pytest.raises(nestruct.InputError, match=r"^The DataLoader gives no batch: give it exam"):
        passes(loader)(0)
    with pytest.raises(nestruct.InputError, match=r"^The DataLoader gives no batch"):
        read_whole(loader, dtype=None, device=CPU, share=False)


def test_what_can_be_read_once():
    minibatches = passes(DataLoader(Once(), batch_size=10))
    minibatches(0)
    with pytest.raises(nestruct.InputError, match=r"DataLoader, begun again, gives no batch.*more"):
        minibatches(1)
    with pytest.raises(nestruct.InputError, match="A generator can be read once only"):
        read_data(batch for batch in [X])


def test_batches_of_different_structure():
    loader = DataLoader([0, 1], batch_size=1, collate_fn=lambda items: (X, Y)[items[0]])
    minibatches = passes(loader)
    minibatches(0)
    message = r"first Tensor\(float32 of 2 axes\), then Tensor\(int64 of 1 axis\): make them alike"
    with pytest.raises(nestruct.InputError, match=message):
        minibatches(1)
    loader = DataLoader([0], collate_fn=lambda items: {"x": X, "names": ["a"] * 10})
    with pytest.raises(nestruct.InputError, match=r"The batch\['names'\]\[0\] is a str"):
        passes(loader)(0)
    loader = DataLoader([0], collate_fn=lambda items: (X, Y[:3]))
    with pytest.raises(nestruct.InputError, match=r"share their first axis, got sizes \[10, 3\]"):
        passes(loader)(0)


def test_the_size_of_a_loaders_batches_is_its_own():
    with pytest.raises(nestruct.InputError, match="batch_size is 3, but the DataLoader says"):
        passes(DataLoader(Y), 3)


@pytest.mark.parametrize(
    "data",
    [(X.numpy(), Y.numpy()), TensorDataset(X, Y), DataLoader(TensorDataset(X, Y), batch_size=3)],
)
def test_held_out_examples_are_one_batch(data):
    x, y = read_whole(data, dtype=torch.float32, device=CPU, share=False)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_a_shuffling_loader_is_evaluated_in_one_order():
    loader = DataLoader(Y, batch_size=3, shuffle=True)
    state = torch.get_rng_state()
    first, again = (read_whole(loader, dtype=None, device=CPU, share=False) for _ in range(2))
    assert torch.equal(first, again)
    assert sorted(first.tolist()) == Y.tolist() != first.tolist()
    assert torch.equal(torch.get_rng_state(), state)


def test_held_out_batches_of_several_shapes_stay_apart():
    class Loss(torch.nn.Module):
        def loss(self, batch, noise):
            assert noise.example.tolist() == batch[:, 0].tolist()
            return batch.sum(1)

    batches = [torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.tensor([[2.0, 1.0, 1.0]])]
    loader = DataLoader(batches, batch_size=None)
    pieces = read_whole(loader, dtype=None, device=CPU, share=False)
    assert isinstance(pieces, Pieces)
    assert len(pieces) == 3
    assert nestruct.evaluate(Loss(), loader) == {"loss": pytest.approx((1 + 2 + 4) / 3)}


def test_functions_and_types_of_ones_own_are_left_alone():
    class Own:
        def __len__(self):
            return 1

        def select_rows(self, index):
            return self

    own = Own()
    assert read_data(own) is own
    assert read_data(steps) is steps
    assert isinstance(read_data(DataLoader(Y)), Loader)
    with pytest.raises(nestruct.InputError, match="Held-out examples are no function of the step"):
        nestruct.evaluate(torch.nn.Linear(2, 1), steps)


def test_what_is_no_data():
    class Frame:  # as those of pandas
        def __iter__(self):
            return iter(["x", "y"])

        def to_numpy(self):
            return X.numpy()

    for data, kind in (("abc", "str"), (3, "int"), (Frame(), "Frame")):
        with pytest.raises(nestruct.InputError, match=rf"^The data is a {kind}, and a batch holds"):
            read_data(data)
