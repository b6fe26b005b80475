"""The model seam and the VAE: losses by hand, shapes, options, exact savings."""

from types import SimpleNamespace

import pytest
import torch
from parser_models import perturbed
from torch import nn
from toys import bits, vae

import nestruct
from nestruct import InputError, Noise
from nestruct.population import Layout, Population, evaluate_members
from nestruct.population.savings import categorical_losses

NOISE = Noise(seed=0, step=1)
X = bits(7, 6)


def test_loss_by_hand():
    model = vae(divergence="gumbel")
    scores = model.encoder(X)
    z = nn.functional.one_hot((scores + NOISE.gumbel(scores)).argmax(-1), 4).double()
    reconstruction = nn.functional.binary_cross_entropy_with_logits(
        model.decoder(z), X, reduction="none"
    ).sum(-1)
    kl = (scores + torch.exp(-scores) - 1).sum(-1)
    torch.testing.assert_close(model.loss(X, NOISE), reconstruction + kl)


def test_divergences_and_likelihoods():
    plain = vae(divergence="none").loss(X, NOISE)
    model = vae(divergence="none")
    for kl in ("gumbel", "gibbs"):
        other = vae(divergence=kl)
        torch.testing.assert_close(
            other.loss(X, NOISE) - plain, other.divergence(other.encode(X), X)
        )
    own = vae(divergence=lambda scores, batch: scores.square().sum(-1))
    torch.testing.assert_close(own.loss(X, NOISE) - plain, own.encode(X).square().sum(-1))
    z = model.infer(X)
    gauss = vae(divergence="none", likelihood="gaussian")
    normal = torch.distributions.Normal(gauss.decoder(z), 1.0)
    torch.testing.assert_close(gauss.decode(X, z), normal.log_prob(X).sum(-1))
    mine = vae(divergence="none", likelihood=lambda mean, batch: -(mean - batch).abs())
    torch.testing.assert_close(mine.decode(X, z), -(mine.decoder(z) - X).abs().sum(-1))


def test_decode_takes_leading_axes_and_relaxed_structures():
    model = vae(likelihood="bernoulli")
    z = torch.rand(2, 3, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    values = model.decode(X, z)
    assert values.shape == (2, 3, 7)
    torch.testing.assert_close(values[1, 2], model.decode(X, z[1, 2]))
    assert torch.autograd.grad(values.sum(), z)[0].abs().sum() > 0


def test_infer_and_sample():
    model = vae(nestruct.SpanningTree(4))
    assert torch.equal(model.infer(X), model.structure.argmax(model.encode(X)))
    samples = model.sample(X, 5, NOISE)
    assert samples.shape == (5, 7, 6)
    assert model.structure.contains(samples).all()
    assert not torch.equal(samples[0], samples[1])
    assert torch.equal(samples[:2], model.sample(X, 2, NOISE))
    assert not samples.requires_grad


def several(**options):
    """Three categories behind each example."""
    model = vae(nestruct.Categorical(4), **options)
    model.encoder = nn.Sequential(nn.Linear(6, 12), nn.Unflatten(1, (3, 4))).double()
    model.decoder = nn.Sequential(nn.Flatten(-2), nn.Linear(12, 6)).double()
    return model


@pytest.mark.parametrize("batch", [X, X[:3]])  # as many examples as categories too
@pytest.mark.parametrize("divergence", nestruct.objective.DIVERGENCES)
def test_several_structures_per_example(divergence, batch):
    """Their divergences add up."""
    model = several(divergence=divergence)
    scores = model.encode(batch)
    z = model.sample(batch, 1, NOISE)[0]
    kl = nestruct.objective.DIVERGENCES[divergence]
    each = [kl(model.structure, scores[:, k]) for k in range(3)]
    expected = torch.stack(each).sum(0) - model.decode(batch, z)
    torch.testing.assert_close(model.loss_at(batch, scores, z), expected)
    for mode in ("vmap", "loop"):
        nestruct.NES(sigma=0.1, population_size=4, mode=mode).backward(model, batch, seed=0)


def test_the_exact_gradient_is_that_of_one_structure_per_example():
    model = several(divergence="gibbs")
    with pytest.raises(InputError, match="needs one structure per example"):
        nestruct.Enumeration().backward(model, X, seed=0)
    nes = nestruct.NES(sigma=0.3, population_size=20, shaping="none", mode="vmap")
    options = {"num_trials": 100, "num_reference": 4000, "compare_laws": False}
    assert nestruct.check_gradient(model, nes, X[:2], **options).passed


@pytest.mark.parametrize("examples", [1, 7])
def test_a_divergence_of_ones_own_counts_in_a_population(examples):
    class Own(nestruct.StructuredVAE):
        def divergence(self, scores, batch):
            return scores.square().sum(-1) * batch.mean(1)

    plain = vae()
    model = Own(plain.encoder, plain.decoder, plain.structure)
    population = perturbed(model)
    found = [
        evaluate_members(model, population, X[:examples], NOISE, mode=m) for m in ("vmap", "loop")
    ]
    torch.testing.assert_close(*found)


def test_the_loss_bound_holds_in_training_only():
    model = vae(divergence="none", loss_bound=0.1)
    assert (model.loss(X, NOISE) <= 0.1 * 6 + 1e-12).all()
    assert (model.eval().loss(X, NOISE) > 0.1 * 6).all()


def test_a_model_of_ones_own_over_sentences():
    class Parser(nestruct.StructuredModel):
        structure = nestruct.ProjectiveTree()

        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, 4, dtype=torch.float64)

        def context(self, batch):
            return {"lengths": batch["lengths"]}

        def encode(self, batch):
            words = self.embed(batch["words"])
            return words @ words.mT

        def decode(self, batch, z):
            return -(z * torch.arange(z.shape[-1]).to(z)).sum((-1, -2))

    batch = {"words": torch.arange(12).view(2, 6) % 9, "lengths": torch.tensor([5, 3])}
    model = Parser()
    z = model.sample(batch, 3, NOISE)
    assert model.structure.contains(z, lengths=batch["lengths"]).all()
    assert model.loss(batch, NOISE).shape == (2,)
    # Longer padding changes nothing.
    padded = {"words": nn.functional.pad(batch["words"], (0, 3)), "lengths": batch["lengths"]}
    torch.testing.assert_close(model.loss(padded, NOISE), model.loss(batch, NOISE))


def test_what_a_batch_reconstructs():
    model = vae()
    by_key = nestruct.StructuredVAE(_First("x"), _Two(model.decoder), model.structure)
    by_key.encoder.inner = model.encoder
    torch.testing.assert_close(by_key.loss({"x": X}, NOISE), model.loss(X, NOISE))
    by_place = nestruct.StructuredVAE(_First(0), _Two(model.decoder), model.structure)
    by_place.encoder.inner = model.encoder
    torch.testing.assert_close(by_place.loss((X, X), NOISE), model.loss(X, NOISE))


class _First(nn.Module):
    def __init__(self, key):
        super().__init__()
        self.key = key
        self.inner: nn.Module | None = None

    def forward(self, batch):
        return self.inner(batch[self.key])


class _Two(nn.Module):
    """A decoder that also gets the batch."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, z, batch):
        return self.inner(z)


def test_mistakes_are_refused():
    with pytest.raises(InputError, match="likelihood must be one of"):
        vae(likelihood="poisson")
    with pytest.raises(InputError, match="divergence must be one of"):
        vae(divergence="kl")
    with pytest.raises(InputError, match="loss_bound must be positive"):
        vae(loss_bound=0)
    for structure in ("tree", nestruct.Categorical, lambda scores: scores > 0):
        with pytest.raises(InputError, match=r"structure must be one of nestruct's.*BlackBox"):
            nestruct.StructuredVAE(nn.Identity(), nn.Identity(), structure)
    for batch in ({"y": X}, SimpleNamespace(y=X)):
        with pytest.raises(InputError, match=f"this {type(batch).__name__} has none"):
            vae().decode(batch, torch.eye(4).double())
    with pytest.raises(NotImplementedError, match="must define encode"):
        nestruct.StructuredModel().loss(X, NOISE)


def test_a_model_without_a_structure_says_what_to_set():
    class Bare(nestruct.StructuredModel):
        def encode(self, batch):
            return batch

    with pytest.raises(InputError, match=r"Bare has no structure: set self\.structure"):
        Bare().loss(X, NOISE)
    assert not hasattr(Bare(), "structure")
    with pytest.raises(AttributeError, match="no attribute 'encoder'"):
        Bare().encoder  # noqa: B018


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@pytest.mark.parametrize(
    ("x", "decoder"),
    [
        (bits(5, 1), nn.Sequential(nn.Linear(4, 1), nn.Flatten(-2))),  # an axis short
        (bits(5, 6), nn.Sequential(nn.Linear(4, 1))),
        (bits(5), nn.Sequential(nn.Linear(4, 1))),
    ],
)
def test_what_a_decoder_gives_is_not_stretched_to_fit(likelihood, x, decoder):
    encoder = nn.Sequential(nn.Unflatten(0, (5, 1)), nn.Flatten(1), nn.Linear(x[0].numel(), 4))
    parts = encoder.double(), decoder.double(), nestruct.Categorical(4)
    model = nestruct.StructuredVAE(*parts, likelihood=likelihood)
    message = r"The decoder must give a .* per component"
    with pytest.raises(InputError, match=message):
        model.loss(x, NOISE)
    for mode in ("vmap", "loop"):
        with pytest.raises(InputError, match=message):
            nestruct.NES(sigma=0.1, population_size=4, mode=mode).backward(model, x, seed=0)


OPTIONS = {
    "plain": {},
    "bounded": {"loss_bound": 0.5},
    "gaussian": {"likelihood": "gaussian"},
    "gibbs": {"divergence": "gibbs"},
}


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("chosen", [None, "encoder", "decoder", "biases"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_exact_savings_equal_the_default_path(options, chosen, mirrored):
    model = vae(**options)
    filters = {
        None: None,
        "encoder": model.encoder,
        "decoder": model.decoder,
        "biases": lambda name, p: name.endswith("bias"),
    }
    layout = Layout(model, filters[chosen])
    generator = torch.Generator().manual_seed(0)
    flat = 0.3 * torch.randn(5, layout.size, generator=generator, dtype=torch.float64)
    population = Population(layout.centre(), layout.split(flat), mirrored)
    members = torch.arange(population.num_members) % 5
    for who in (None, members, torch.arange(population.num_members)):
        noise = NOISE if who is None else NOISE.replace(pair=who)
        saved = categorical_losses(model, population, X, noise)
        assert saved is not None
        plain = evaluate_members(model, population, X, NOISE, mode="loop", member_noise=who)
        assert saved.shape == (population.num_members, 7)
        torch.testing.assert_close(saved, plain)


def overridden(name: str):
    """A subclass that changes one method, as users do."""

    class Changed(nestruct.StructuredVAE):
        pass

    original = getattr(nestruct.StructuredVAE, name)
    setattr(Changed, name, lambda self, *args: 2 * original(self, *args))
    return Changed


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Residual(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


def variants() -> dict[str, nestruct.StructuredVAE]:
    models = {}
    for name in ("encode", "decode", "loss", "loss_at"):
        plain = vae()
        models[name] = overridden(name)(plain.encoder, plain.decoder, plain.structure)
    models["own layer"] = vae()
    models["own layer"].encoder[0] = Doubled(6, 5).double()
    models["own sequential"] = vae()
    models["own sequential"].encoder = Residual(*vae().encoder)
    models["hook"] = vae()
    models["hook"].encoder.register_forward_hook(lambda module, args, output: output + 1)
    models["shared"] = vae()
    models["shared"].encoder[2] = models["shared"].decoder[0] = nn.Linear(4, 4).double()
    models["shared"].encoder[0] = nn.Linear(6, 4).double()
    models["shared"].decoder[2] = nn.Linear(4, 6).double()
    models["weight norm"] = vae()
    nn.utils.parametrizations.weight_norm(models["weight norm"].encoder[0])
    activation = nn.Tanh()
    models["one activation twice"] = vae()
    models["one activation twice"].encoder = nn.Sequential(
        nn.Linear(6, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 4)
    ).double()
    return models


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's weight norm in vmap
@pytest.mark.parametrize("name", variants())
def test_whatever_a_model_changes_vmap_equals_loop(name):
    torch.manual_seed(0)
    model = variants()[name]
    layout = Layout(model)
    generator = torch.Generator().manual_seed(0)
    flat = 0.3 * torch.randn(5, layout.size, generator=generator, dtype=torch.float64)
    population = Population(layout.centre(), layout.split(flat), True)
    losses = [evaluate_members(model, population, X, NOISE, mode=mode) for mode in ("vmap", "loop")]
    torch.testing.assert_close(*losses)


def test_a_likelihood_must_keep_its_components():
    model = vae(likelihood=lambda mean, batch: -((mean - batch) ** 2).sum(-1))
    with pytest.raises(InputError, match=r"a log-probability per component.*\(7, 6\); got \(7,\)"):
        model.loss(X, NOISE)


@pytest.mark.parametrize("change", ["structure", "dropout", "norm", "own decoder"])
def test_savings_step_aside_where_they_do_not_apply(change):
    model = vae(nestruct.KSubset(4, 2) if change == "structure" else None, divergence="gumbel")
    if change == "dropout":
        model.encoder.append(nn.Dropout())
    if change == "norm":
        model.encoder.insert(1, nn.BatchNorm1d(5).double())
    if change == "own decoder":
        model.decoder = _Two(model.decoder)
    layout = Layout(model)
    flat = torch.zeros(2, layout.size, dtype=torch.float64)
    population = Population(layout.centre(), layout.split(flat), True)
    assert categorical_losses(model, population, X, NOISE) is None
    assert evaluate_members(model, population, X, NOISE, mode="vmap").shape == (4, 7)


@pytest.mark.parametrize("decode", [lambda z: z.sum(), lambda z: z.sum(-1)[..., None] - z])
@pytest.mark.parametrize(
    "estimator",
    [
        nestruct.NES(sigma=0.1, population_size=4),
        nestruct.StructureNES(num_samples=4),
        nestruct.ScoreNES(num_pairs=2),
        nestruct.SST(temperature=1.0),
        nestruct.Reinforce(num_samples=2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_decoder_without_a_number_per_example_is_refused(decode, estimator):
    class Model(nestruct.StructuredModel):
        structure = nestruct.KSubset(6, 2)

        def __init__(self):
            super().__init__()
            self.scores = torch.nn.Linear(3, 6)

        def encode(self, batch):
            return self.scores(batch)

        def decode(self, batch, z):
            return decode(z)

    with pytest.raises(
        InputError, match=r"Model\.decode must give log p\(x \| z\) of each example"
    ):
        estimator.backward(Model(), torch.randn(6, 3), seed=0)


def test_a_sequential_encoder_sees_what_is_reconstructed():
    model, x = vae(), bits(3, 6)
    expected = model.loss(x, NOISE)
    for batch in ((x,), [x, torch.zeros(3)], {"x": x, "z": torch.eye(4)[:3]}):
        assert torch.equal(model.loss(batch, NOISE), expected)


def test_an_encoder_of_ones_own_sees_the_batch():
    class Own(torch.nn.Linear):
        def forward(self, batch):
            return super().forward(batch["x"] + batch["shift"])

    x = torch.ones(2, 3)
    for encoder in (Own(3, 4), torch.nn.Sequential(Own(3, 4))):
        model = nestruct.StructuredVAE(encoder, torch.nn.Linear(4, 3), nestruct.Categorical(4))
        assert model.encode({"x": x, "shift": x}).shape == (2, 4)
