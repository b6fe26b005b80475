"""Evaluation: means with fixed draws, whatever the batch size."""

import math

import pytest
import torch
import toys

import nestruct


def test_the_batch_size_does_not_matter():
    model, data = toys.vae(), toys.bits(23, 6)
    whole = nestruct.evaluate(model, data, seed=3)
    assert nestruct.evaluate(model, data, seed=3, batch_size=4) == pytest.approx(whole)
    assert nestruct.evaluate(model, data, seed=4) != whole


def test_a_pair_is_a_share():
    def metrics(model, batch, noise):
        hits, all_of_them = batch.T
        nothing = 0 * hits
        few = (hits / 100, all_of_them / 100)
        return {"share": (hits, all_of_them), "few": few, "none": (nothing, nothing)}

    data = torch.tensor([[1.0, 2.0], [0.0, 5.0], [3.0, 3.0]])
    found = nestruct.evaluate(toys.vae(), data, batch_size=2, metrics=metrics)
    assert math.isnan(found.pop("none"))
    assert found == {"share": pytest.approx(0.4), "few": pytest.approx(0.4)}
    with pytest.raises(nestruct.InputError, match="one value per example"):
        nestruct.evaluate(toys.vae(), data, metrics=lambda *a: {"share": (data[:, 0], data)})


def test_an_overridden_loss_is_what_is_reported():
    class Shifted(nestruct.StructuredVAE):
        def loss(self, batch, noise):
            return 7 + 0 * super().loss(batch, noise)

    model = toys.vae()
    model.__class__ = Shifted
    assert nestruct.evaluate(model, toys.bits(5, 6)) == {"loss": 7.0}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_true_structures_of_any_dtype_give_f1(dtype):
    model = toys.vae(nestruct.KSubset(5, 2))
    model.encoder, data = torch.nn.Sequential(torch.nn.Linear(6, 5).double()), toys.bits(40, 6)
    truth = model.infer(data)

    class Wrapped(nestruct.StructuredModel):
        structure = model.structure

        def encode(self, batch):
            return model.encode(batch["x"])

        def decode(self, batch, z):
            return model.decode(batch["x"], z)

    found = nestruct.evaluate(Wrapped(), {"x": data, "z": truth.to(dtype)})
    assert found["f1_map"] == 1
    assert 0.2 < found["f1_sample"] < 1
    unrelated = {"x": data, "z": torch.zeros(40, 3)}
    assert set(nestruct.evaluate(Wrapped(), unrelated)) == {"loss"}


def test_draws_of_torch_are_fixed_and_the_callers_left_alone():
    def noisy(model, batch, noise):
        return {"loss": torch.rand(len(batch))}

    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = nestruct.evaluate(toys.vae(), toys.bits(4, 6), metrics=noisy)
    assert nestruct.evaluate(toys.vae(), toys.bits(4, 6), metrics=noisy) == first
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (lambda m, b, n: None, "a dictionary of tensors, got NoneType"),
        (lambda m, b, n: {"step": m.loss(b, n)}, "cannot be called 'step'"),
        (lambda m, b, n: {"loss": 1.0}, r"one value per example, \[4\]; got float"),
        (lambda m, b, n: {"loss": m.loss(b, n).mean()}, r"got shape \(\)"),
    ],
)
def test_bad_metrics(metrics, message):
    with pytest.raises(nestruct.InputError, match=message):
        nestruct.evaluate(toys.vae(), toys.bits(4, 6), metrics=metrics)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_batch_has_examples(size):
    with pytest.raises(nestruct.InputError, match="evaluate: batch_size must be"):
        nestruct.evaluate(toys.vae(), toys.bits(4, 6), batch_size=size)


def test_a_module_without_a_loss():
    with pytest.raises(nestruct.InputError, match="Linear cannot be evaluated"):
        nestruct.evaluate(torch.nn.Linear(2, 2), torch.ones(3, 2))


def test_data_are_left_where_they_are_for_a_model_without_parameters():
    class Where(torch.nn.Module):
        def loss(self, batch, noise):
            seen.append(batch.device.type)
            return torch.zeros(len(batch))

    seen = []
    nestruct.evaluate(Where(), torch.ones(2, 3, device="meta"))
    assert seen == ["meta"]


def solve_some(scores):
    """No answer for what begins with a large score."""
    z = (scores > 0).float()
    return z * torch.nan if scores[0] > 1 else z


class HalfSolved(nestruct.StructuredModel):
    """Its scores are the batch, and so is what parts are worth."""

    def __init__(self, solve):
        super().__init__()
        self.structure = nestruct.BlackBox(solve, shape=(3,), batched=False)

    def encode(self, batch):
        return batch

    def decode(self, batch, z):
        return (z * batch).sum(-1)


def test_examples_without_an_answer_are_left_out_and_counted():
    def metrics(model, batch, noise):  # no noise, so that it is known who has an answer
        return {"loss": -model.decode(batch, model.infer(batch))}

    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    answered = x[:, 0] <= 1
    model = HalfSolved(solve_some)
    found = nestruct.evaluate(model, x, batch_size=7, metrics=metrics)
    alone = nestruct.evaluate(model, x[answered], metrics=metrics)
    assert 0 < answered.sum() < 50
    assert found["loss"] == pytest.approx(alone["loss"])
    assert found["unanswered"] == pytest.approx(float((~answered).float().mean()))
    assert "unanswered" not in alone
    none = nestruct.evaluate(HalfSolved(lambda scores: scores * torch.nan), x, metrics=metrics)
    assert none["unanswered"] == 1
    assert none["loss"] != none["loss"]


def test_a_loss_that_is_nan_for_another_reason_is_not_left_out():
    def metrics(model, batch, noise):
        return {"loss": batch.sum(-1).log()}

    found = nestruct.evaluate(
        HalfSolved(solve_some), torch.tensor([[-1.0] * 3, [1.0] * 3]), metrics=metrics
    )
    assert found["loss"] != found["loss"]


def test_a_step_without_any_answer_says_whose_fault_it_is():
    model = HalfSolved(lambda scores: scores * torch.nan)
    estimator = nestruct.StructureNES()
    model.scale = torch.nn.Parameter(torch.ones(3))
    model.encode = lambda batch: batch * model.scale
    with pytest.raises(
        nestruct.NestructError, match="The solver had no answer for 64 instances of it"
    ):
        estimator.backward(model, torch.randn(4, 3), seed=0)
    model.structure = nestruct.BlackBox(lambda scores: scores > 0, shape=(3,), batched=False)
    model.decode = lambda batch, z: (z * batch).sum(-1) * torch.nan
    with pytest.raises(nestruct.NestructError, match="Look for NaN in the data"):
        estimator.backward(model, torch.randn(4, 3), seed=0)
