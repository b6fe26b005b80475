"""The parsing VAE: kernels against their twins, the population's savings against the plain loop."""

import copy
from types import SimpleNamespace

import pytest
import torch
from parser_models import DATA, SMALL, losses, make, perturbed

import nestruct
from nestruct import NES, InputError, Noise
from nestruct.data import Grammar, select_rows
from nestruct.data.sentences import collate
from nestruct.data.treebank import sentence_of
from nestruct.models import ParserVAE, hard_structures
from nestruct.models.parser import networks as dependency
from nestruct.models.parser import population as parser_population
from nestruct.models.parser.kernels import (
    lstm_step,
    lstm_step_plain,
    score_arcs,
    score_arcs_plain,
)
from nestruct.population import Layout, Population


@pytest.fixture(scope="module")
def batch():
    return select_rows(DATA.splits()["train"], torch.arange(9)).cut(24)


@pytest.mark.parametrize("structure", ["projective", "non-projective"])
@pytest.mark.parametrize("divergence", ["none", "gibbs"])
@pytest.mark.parametrize("public_code", [False, True])
def test_population_is_the_plain_loop(batch, structure, divergence, public_code):
    model = make(
        objective="vae", structure=structure, divergence=divergence, public_code=public_code
    )
    population = perturbed(model)
    together = losses(model, population, batch, "vmap")
    torch.testing.assert_close(together, losses(model, population, batch, "loop"))
    assert len(together.mean(1).unique()) > 3  # members differ


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("structure", ["projective", "non-projective"])
def test_the_ways_of_a_gpu_are_the_plain_loop(batch, structure, captured, monkeypatch):
    """Words are not counted there, and cases not inside of a captured graph."""
    model = make(objective="vae", structure=structure)
    population = perturbed(model)
    expected = losses(model, population, batch, "loop")
    monkeypatch.setattr(parser_population, "_is_on_cpu", lambda tensor: False)
    monkeypatch.setattr(parser_population, "is_capturing", lambda tensor: captured)
    torch.testing.assert_close(losses(model, population, batch, "vmap"), expected)


def test_population_with_draws_of_its_own(batch):
    model = make(objective="vae")
    population = perturbed(model, mirrored=False)
    options = {"member_noise": torch.tensor([4, 5, 4]), "num_samples": 2}
    together = losses(model, population, batch, "vmap", **options)
    torch.testing.assert_close(together, losses(model, population, batch, "loop", **options))


def test_population_of_some_parameters(batch):
    model = make(objective="vae")
    layout = Layout(model, ["parser.words.weight", "parser.lstm.weight_hh_l1"])
    flat = 0.3 * torch.randn(2, layout.size, dtype=torch.float64)
    population = Population(layout.centre(), layout.split(flat), True)
    together = losses(model, population, batch, "vmap")
    torch.testing.assert_close(together, losses(model, population, batch, "loop"))


def test_a_model_of_ones_own_is_evaluated_as_it_is(batch):
    class Twice(ParserVAE):
        def loss_at(self, batch, scores, z):
            return 2 * super().loss_at(batch, scores, z)

    model = make(objective="vae")
    population = perturbed(model)
    once = losses(model, population, batch, "vmap")
    model.__class__ = Twice
    torch.testing.assert_close(losses(model, population, batch, "vmap"), 2 * once)


def test_a_divergence_of_ones_own_counts_in_a_population(batch):
    class Own(ParserVAE):
        def divergence(self, scores, batch):
            return scores.square().sum((-1, -2)) / batch.lengths

    model = make(objective="vae")
    model.__class__ = Own
    population = perturbed(model)
    together = losses(model, population, batch, "vmap")
    torch.testing.assert_close(together, losses(model, population, batch, "loop"))


def test_population_with_a_decoder_each(batch):
    model = make(objective="vae", freeze_decoder=False)
    population = perturbed(model)
    assert model.population_losses(population, batch, Noise(seed=0)) is NotImplemented
    together = losses(model, population, batch, "vmap")
    torch.testing.assert_close(together, losses(model, population, batch, "loop"))
    rows = torch.tensor([[0, 3], [1, 2], [8, 0]] * 2)
    together = losses(model, population, batch, "vmap", rows=rows)
    torch.testing.assert_close(together, losses(model, population, batch, "loop", rows=rows))


def test_population_in_single_precision(batch):
    model = make(objective="vae", dtype=torch.float32)
    population = perturbed(model)
    together = losses(model, population, batch, "vmap")
    alone = losses(model, population, batch, "loop")
    # A tie of two trees may fall the other way; all else agrees.
    assert ((together - alone).abs() < 1e-4).double().mean() > 0.95


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("gigabytes", [16, 140])
def test_long_sentences_leave_a_gpu_blocks_worth_launching(gigabytes, triton, monkeypatch):
    monkeypatch.setattr(parser_population, "_gpu_bytes", lambda tensor: gigabytes * 1e9)
    monkeypatch.setattr(parser_population, "has_triton", lambda tensor: triton)
    for words, examples, expected in ((22, 128, 4 * gigabytes // 5), (250, 32, gigabytes // 8)):
        members = object.__new__(parser_population._Members)
        members.on_cpu, members.size, members.like = False, 125, torch.empty(0)
        members.batch = SimpleNamespace(words=torch.empty(examples, words + 1))
        members.has_kl = False
        pairs = members._num_pairs
        assert pairs >= expected
        members.has_kl = True  # whose log-partitions take more room
        assert 1 <= members._num_pairs < pairs


def test_padding_changes_nothing(batch):
    model = make(objective="vae")
    wide = batch.cut(40)
    noise = Noise(seed=1)
    torch.testing.assert_close(model.loss(batch, noise), model.loss(wide, noise))
    population = perturbed(model)
    torch.testing.assert_close(
        losses(model, population, batch, "vmap"), losses(model, population, wide, "vmap")
    )
    for objective in ("parser", "decoder"):
        model = make(objective=objective)
        torch.testing.assert_close(model.loss(batch, noise), model.loss(wide, noise))


@pytest.mark.parametrize("seed", range(3))
def test_lstm_kernel(seed):
    generator = torch.Generator().manual_seed(seed)
    scale = [0.1, 3.0, 30.0][seed]
    gates = scale * torch.randn(3, 11, 2, 36, generator=generator)
    index = torch.randint(11, (2, 7), generator=generator)
    added = scale * torch.randn(3, 2, 7, 36, generator=generator)
    states = torch.randn(3, 2, 7, 9, generator=generator)
    places = torch.stack([torch.randperm(8, generator=generator)[:7] for _ in range(2)])
    results = []
    for step in (lstm_step, lstm_step_plain):
        state, hidden, features = states.clone(), torch.empty_like(states), torch.zeros(3, 8, 2, 9)
        step(gates, index, added, state, hidden, places, features)
        assert features[1, places[1, 3], 1].equal(hidden[1, 1, 3])
        results.append((state, hidden, features))
    torch.testing.assert_close(*results, atol=5e-7, rtol=2e-6)


@pytest.mark.parametrize("scale", [0.1, 2.0, 50.0])
def test_arc_kernel(scale):
    generator = torch.Generator().manual_seed(0)
    head, dependent = scale * torch.randn(2, 3, 6, 4, 10, generator=generator)
    weight, lengths = torch.randn(3, 10, generator=generator), torch.tensor([5, 0, 1, 3])
    counting = nestruct.ProjectiveTree().counting(torch.zeros(3, 4, 6, 6), lengths=lengths)
    expected = score_arcs_plain(head, dependent, weight, lengths)
    found = score_arcs(head, dependent, weight, lengths)
    torch.testing.assert_close(found, torch.where(counting, expected, 0), atol=3e-6, rtol=1e-5)


def test_scores_are_those_of_the_formula(batch):
    model = make()
    scores = model.encode(batch)
    assert scores.shape == (9, 25, 25)
    features = model._features(batch, batch.words)
    scorer = model.parser.arc
    hidden = features[2, 3] @ scorer.head.weight.T + scorer.dependent(features[2, 5])
    torch.testing.assert_close(scores[2, 3, 5], (hidden.tanh() @ scorer.output.weight.T)[0])


def write(model, batch, z, row):
    """The log-probability of one sentence, word by word."""
    decoder, total = model.decoder, 0.0
    n = int(batch.lengths[row])
    vectors = model.vectors_of(batch.words)[row : row + 1, : n + 1]
    states = decoder.lstm(vectors, torch.tensor([n + 1]))[0]
    for i in range(1, n + 1):
        at = i - 1 if decoder.lag else i
        hidden = decoder.current(states[i - 1])
        for j in range(at):
            hidden = hidden + z[row, j, at] * decoder.head(states[j])
            hidden = hidden + z[row, at, j] * decoder.dependent(states[j])
        word = int(batch.words[row, i])
        word = word if word < DATA.vocabulary.num_outputs else 0
        total = total + decoder.output(hidden.tanh()).log_softmax(-1)[word]
    return total


@pytest.mark.parametrize("public_code", [False, True])
def test_decoder_is_the_formula(batch, public_code):
    model = make(objective="vae", public_code=public_code)
    generator = torch.Generator().manual_seed(0)
    relaxed = torch.rand(9, 25, 25, generator=generator, dtype=torch.float64)
    for z in (relaxed, batch.z.double()):
        values = model.decode(batch, z)
        expected = torch.stack([write(model, batch, z, row) for row in range(9)])
        torch.testing.assert_close(values, expected)
    with hard_structures(), torch.no_grad():  # the short way
        torch.testing.assert_close(model.decode(batch, batch.z.double()), expected)


def test_decode_takes_leading_axes_and_is_differentiable(batch):
    model = make(objective="vae", freeze_decoder=False)
    z = batch.z.double().expand(2, 3, -1, -1, -1).clone().requires_grad_()
    values = model.decode(batch, z)
    assert values.shape == (2, 3, 9)
    (slope,) = torch.autograd.grad(values[1, 2].sum(), z)
    assert slope[1, 2].abs().sum() > 0
    assert slope[0].abs().sum() == slope[1, :2].abs().sum() == 0
    small = select_rows(batch, torch.tensor([0])).cut(int(batch.lengths[0]))
    start = torch.rand_like(small.z.double()).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: make(objective="vae").decode(small, z), start)


def last_words_matter(batch, public_code) -> bool:
    model = make(objective="vae", public_code=public_code)
    other = batch.z.double()
    for row, n in enumerate(batch.lengths.tolist()):
        other[row, :, n] = 0
        other[row, 0 if batch.heads[row, n] else 1, n] = 1
    return not torch.equal(model.decode(batch, batch.z.double()), model.decode(batch, other))


def test_the_authors_decoder_never_reads_the_last_words_arcs(batch):
    assert last_words_matter(batch, public_code=False)
    assert not last_words_matter(batch, public_code=True)


def test_losses_are_per_word(batch):
    model = make(objective="vae")
    scores = model.encode(batch)
    z = model.structure.argmax(scores, lengths=batch.lengths)
    expected = -model.decode(batch, z) / batch.lengths
    torch.testing.assert_close(model.loss_at(batch, scores, z), expected)
    gibbs = make(objective="vae", divergence="gibbs")
    kl = nestruct.objective.gibbs_divergence(gibbs.structure, scores, lengths=batch.lengths)
    torch.testing.assert_close(gibbs.loss_at(batch, scores, z), expected + kl / batch.lengths)


def test_phases_train_what_they_say(batch):
    trained = {
        objective: {name.partition(".")[0] for name in Layout(make(objective=objective)).parameters}
        for objective in ("parser", "decoder", "vae")
    }
    assert trained == {"parser": {"parser"}, "decoder": {"decoder"}, "vae": {"parser"}}
    vae = Layout(make(objective="vae", freeze_decoder=False)).parameters
    assert {name.partition(".")[0] for name in vae} == {"parser", "decoder"}
    assert not any("label" in name for name in vae)


def test_only_words_of_the_batch_move(batch):
    model = make(objective="vae")
    NES(sigma=0.1, population_size=4, mode="vmap").backward(model, batch, seed=0)
    moved = model.parser.words.weight.grad.abs().sum(1) > 0
    known = batch.words[batch.words < len(moved)].unique()
    assert moved.nonzero().flatten().tolist() == sorted({0, *known.tolist()})


def test_word_dropout():
    model = make(word_dropout=0.25)
    rare = DATA.vocabulary.counts[-1]
    torch.testing.assert_close(model.drop_chance[-1].item(), 0.25 / (0.25 + rare))
    assert model.drop_chance[:2].tolist() == [0, 0]
    train = DATA.splits()["train"]
    first, second = (model.loss(train, Noise(seed=0, step=step)) for step in (0, 1))
    assert not first.equal(second)
    assert first.equal(model.loss(train, Noise(seed=0)))
    model.eval()
    assert model.loss(train, Noise(seed=0)).equal(model.loss(train, Noise(seed=1)))
    never = make(word_dropout=0.0)
    assert never.loss(train, Noise(seed=0)).equal(never.loss(train, Noise(seed=1)))


def test_supervised_loss_is_the_cross_entropy(batch):
    model = make().eval()
    found = model.loss(batch, Noise(seed=0))
    scores = model.encode(batch)
    features = model._features(batch, batch.words)
    row, n = 1, int(batch.lengths[1])
    total = 0.0
    for word in range(1, n + 1):
        others = [h for h in range(n + 1) if h != word]
        head = int(batch.heads[row, word])
        total = total - scores[row, others, word].log_softmax(0)[others.index(head)]
        labels = model.parser.label.at_heads(features, batch.heads)[row, word]
        total = total - labels.log_softmax(0)[batch.labels[row, word]]
    torch.testing.assert_close(found[row], total / n)


def test_attachment_scores():
    """Against counting by hand; labels are those of the heads that were found."""
    model = make(dtype=torch.float32)
    test = DATA.splits()["test"]
    values = nestruct.evaluate(model, test, batch_size=7)
    heads, labels = model.parse(test)
    right = words = labelled = counted = hit = 0
    for row, n in enumerate(test.lengths.tolist()):
        for word in range(1, n + 1):
            same = bool(heads[row, word] == test.heads[row, word])
            words += 1
            right += same
            labelled += same and bool(labels[row, word] == test.labels[row, word])
            counted += bool(test.scored[row, word])
            hit += same and bool(test.scored[row, word])
    assert counted < words  # punctuation
    assert values["uas_all"] == pytest.approx(right / words)
    assert values["las_all"] == pytest.approx(labelled / words)
    assert values["uas"] == pytest.approx(hit / counted)
    assert values["las"] <= values["uas"]


@pytest.mark.parametrize("single_root", [True, False])
def test_root_is_the_label_of_the_words_below_it(single_root):
    model = make(single_root=single_root)
    test = DATA.splits()["test"]
    heads, labels = model.parse(test)
    free = model.parser.label.at_heads(model._features(test, test.words), heads).argmax(-1)
    root = model.vocabulary.labels.index("root")
    below = heads == 0
    assert labels.eq(root).equal(below)
    assert not free.eq(root).equal(below)  # what an untrained scorer would say
    agree = free.eq(root) == below
    assert labels[agree].equal(free[agree])


@pytest.mark.parametrize("length", [1, 2, 250])
@pytest.mark.parametrize("structure", ["projective", "non-projective"])
def test_lengths(length, structure):
    sentence = sentence_of(
        ["never-seen", *["banoun"] * (length - 1)], range(length), ["root"] * length
    )
    batch = collate([sentence], DATA.vocabulary, trees=True)
    assert batch.words[0, 1] == 0
    model = make(objective="vae", structure=structure, dtype=torch.float32)
    assert model.structure.contains(model.infer(batch), lengths=batch.lengths).all()
    assert model.loss(batch, Noise(seed=0)).isfinite().all()
    population = perturbed(model, pairs=1)
    assert losses(model, population, batch, "vmap").isfinite().all()
    assert make(dtype=torch.float32).loss(batch, Noise(seed=0)).isfinite().all()


def test_a_failed_member_leaves_the_others_alone(batch):
    model = make(objective="vae")
    population = perturbed(model)
    good = losses(model, population, batch, "vmap")
    population.directions["parser.arc.output.weight"][1, 0, 0] = torch.nan
    found = losses(model, population, batch, "vmap")
    assert found[[1, 4]].isnan().all()
    torch.testing.assert_close(found[[0, 2, 3, 5]], good[[0, 2, 3, 5]])


def test_a_structure_estimator_takes_the_short_way(batch, monkeypatch):
    model = make(objective="vae")
    estimator = nestruct.StructureNES(num_samples=4, num_covariance=4)
    estimator.backward(model, batch, seed=0)
    short = copy.deepcopy(model.parser.arc.head.weight.grad)
    with monkeypatch.context() as patch:
        patch.setattr(ParserVAE, "_has_cases", lambda *_: False)
        estimator.backward(model, batch, seed=0)
    torch.testing.assert_close(short, model.parser.arc.head.weight.grad)


@pytest.mark.parametrize("public_code", [False, True])
def test_distinct_cases_of_a_trained_decoder(batch, public_code, monkeypatch):
    model = make(objective="vae", freeze_decoder=False, public_code=public_code)
    scores = torch.randn(5, *batch.z.shape, dtype=torch.float64)
    z = model.structure.argmax(scores.flatten(0, 1), batch.lengths.repeat(5)).view_as(scores)
    weights = torch.randn(5, len(batch), dtype=torch.float64)

    def slopes(kept: int) -> list[torch.Tensor]:
        with hard_structures(), monkeypatch.context() as patch:
            patch.setattr(dependency, "_KEPT_LOGITS", kept)
            patch.setitem(dependency._MAX_LOGITS, "cpu", 300)
            loss = (model.decode(batch, z) * weights).sum()
        return list(torch.autograd.grad(loss, list(model.decoder.parameters())))

    cases, twice = slopes(1 << 28), slopes(0)  # logits kept, and computed a second time
    monkeypatch.setattr(ParserVAE, "_has_cases", lambda *_: False)
    for found in (cases, twice):
        torch.testing.assert_close(found, slopes(1 << 28))


def test_a_trained_decoder_has_the_same_gradient_every_time():
    """Not only the same sum: the same order of its terms, on several threads."""
    data = Grammar(num_train=128)
    model = ParserVAE(data.vocabulary, data.vectors, objective="vae", freeze_decoder=False)
    batch, estimator = (
        data.splits()["train"],
        nestruct.StructureNES(num_samples=4, num_covariance=0),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = []
        for _ in range(2):
            estimator.backward(model, batch, seed=0)
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *found))


def test_relaxed_training(batch):
    model = make(objective="vae")
    report = nestruct.SST(temperature=1.0).backward(model, batch, seed=0)
    assert report.grad_norm > 0


def test_gradients_have_the_layout_of_their_parameters(batch):
    model = make(objective="vae")  # recurrent weights get transposed ones from autograd
    nestruct.DPP().backward(model, batch, seed=0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            assert parameter.grad.stride() == parameter.stride()


def test_state_keeps_the_vocabulary():
    model = make()
    state = copy.deepcopy(model.state_dict())
    again = ParserVAE(**ParserVAE.given_by(state), **SMALL).double()
    again.load_state_dict(state)
    assert again.vocabulary == model.vocabulary
    other = Grammar(num_train=5, vector_size=6)
    stranger = ParserVAE(other.vocabulary, other.vectors, **SMALL)
    with pytest.raises(RuntimeError):
        stranger.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structure": "tree"}, "structure must be one of"),
        ({"objective": "both"}, "objective must be one of"),
        ({"divergence": "l2"}, "divergence must be one of"),
        ({"lstm_size": 0}, "lstm_size must be a whole number"),
        ({"word_dropout": -1.0}, "word_dropout must not be negative"),
    ],
)
def test_refuses_options(options, words):
    with pytest.raises(InputError, match=words):
        make(**options)


def test_refuses_vectors_of_other_words_and_trees_without_latent(batch):
    with pytest.raises(InputError, match="a row for each of"):
        ParserVAE(DATA.vocabulary, DATA.vectors[:-1])
    with pytest.raises(InputError, match="has no latent tree"):
        nestruct.SST(temperature=1.0).backward(make(), batch, seed=0)
