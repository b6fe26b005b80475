"""A VAE over sentences with a latent dependency tree: the paper's parser (Section 4.2).

The encoder is a graph-based parser that scores arcs, the decoder a language model that reads the
tree. Trained in phases: the parser on trees, the decoder on trees, then both, or the parser alone,
on sentences without trees.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nestruct.checks import check_choice, check_count
from nestruct.data import Sentences, Vocabulary
from nestruct.data.treebank import MAX_WORDS
from nestruct.errors import InputError
from nestruct.members import Population
from nestruct.models.parser.details import count_attached
from nestruct.models.parser.files import read_sentences
from nestruct.models.parser.networks import ArcParser, TreeLanguageModel
from nestruct.models.parser.population import case_log_likelihood, heads_of, population_losses
from nestruct.models.parser.words import ParsedSentence, parse_words, read_vectors
from nestruct.models.structured import StructuredModel, are_hard, overrides_nothing
from nestruct.noise import Noise
from nestruct.objective import DIVERGENCES, check_divergence
from nestruct.structures import NonProjectiveTree, ProjectiveTree
from nestruct.structures.dependency_tree import DependencyTree
from nestruct.structures.rows import is_capturing

_STRUCTURES: dict[str, type[DependencyTree]] = {
    "projective": ProjectiveTree,
    "non-projective": NonProjectiveTree,
}
_OBJECTIVES = ("parser", "decoder", "vae")


class ParserVAE(StructuredModel):
    """A dependency parser and a decoder that writes the sentence from its tree.

    Losses are per word, then averaged over sentences, as published. What a phase does not train is
    frozen: it requires no gradient and no estimator perturbs it.

    Args:
        vocabulary: Words and labels.
        vectors: A fixed vector for each word of the vocabulary.
        structure: ``projective`` or ``non-projective`` trees.
        single_root: Whether exactly one word hangs from the root; the authors' code allows any
            number.
        objective: What `loss` is. ``parser``: cross-entropy of each word's head and label, with
            word dropout. ``decoder``: the sentence given its true tree. ``vae``: the negative ELBO
            at perturb-and-MAP trees; no true tree is looked at, and labels are left as they are.
        freeze_decoder: Whether the decoder is left as it is under ``vae``, as in the authors'
            command for NES.
        divergence: One of `nestruct.objective.DIVERGENCES`; ``none`` is what the authors' code has.
        public_code: Whether the decoder's arcs lag by one word, as in the authors' code; see
            `TreeLanguageModel`.
        word_size: Numbers of a word's trained vector.
        lstm_size: Hidden units of each direction of the parser's LSTM.
        mlp_size: Hidden units of the parser's scorers.
        decoder_size: Hidden units of the decoder.
        word_dropout: a: a word that occurs c times is taken for an unknown one with chance
            ``a / (a + c)``, in half of these cases with the vector from outside.

    Example:
        >>> import nestruct
        >>> from nestruct.data import Grammar
        >>> data = Grammar(num_train=20)
        >>> model = ParserVAE(data.vocabulary, data.vectors, lstm_size=8, objective="vae")
        >>> model.infer(data.splits()["validation"]).sum(-2).max()  # one head for each word
        tensor(1.)
    """

    structure: DependencyTree

    def __init__(
        self,
        vocabulary: Vocabulary,
        vectors: Tensor,
        *,
        structure: str = "projective",
        single_root: bool = True,
        objective: Literal["parser", "decoder", "vae"] = "parser",
        freeze_decoder: bool = True,
        divergence: str = "none",
        public_code: bool = False,
        word_size: int = 100,
        lstm_size: int = 125,
        mlp_size: int = 100,
        decoder_size: int = 100,
        word_dropout: float = 0.25,
    ) -> None:
        super().__init__()
        owner = "ParserVAE"
        sizes = {"word_size": word_size, "lstm_size": lstm_size}
        sizes |= {"mlp_size": mlp_size, "decoder_size": decoder_size}
        for name, size in sizes.items():
            check_count(owner, name, size, 1)
        check_choice("ParserVAE: structure", structure, _STRUCTURES)
        check_choice("ParserVAE: objective", objective, _OBJECTIVES)
        check_divergence(owner, divergence)
        if not 0 <= word_dropout < float("inf"):
            raise InputError(f"ParserVAE: word_dropout must not be negative, got {word_dropout!r}.")
        if len(vectors) != len(vocabulary.words):
            raise InputError(
                f"ParserVAE: vectors must have a row for each of the {len(vocabulary.words)} words "
                f"of the vocabulary, got {len(vectors)}."
            )
        self.vocabulary = vocabulary
        self.structure = _STRUCTURES[structure](single_root)
        self.objective, self.kl = objective, divergence
        # Parameters that are never trained, not buffers: members of a population share them.
        self.vectors = nn.Parameter(vectors.clone(), requires_grad=False)
        chance = word_dropout / (word_dropout + torch.tensor(vocabulary.counts).float())
        chance[:2] = 0  # the unknown word and the root
        self.drop_chance = nn.Parameter(chance.nan_to_num(0), requires_grad=False)
        self.parser = ArcParser(
            vocabulary.num_embedded,
            vectors.shape[1],
            max(1, len(vocabulary.labels)),
            word_size=word_size,
            lstm_size=lstm_size,
            mlp_size=mlp_size,
        )
        self.decoder = TreeLanguageModel(
            vocabulary.num_outputs, vectors.shape[1], hidden_size=decoder_size, lag=public_code
        )
        self.parser.requires_grad_(objective != "decoder")
        if objective == "vae":
            self.parser.label.requires_grad_(False)
        self.decoder.requires_grad_(
            objective == "decoder" or (objective == "vae" and not freeze_decoder)
        )

    def encode(self, batch: Sentences) -> Float[Tensor, "batch tokens tokens"]:
        """The score of every arc, heads x dependents."""
        return self.parser.arc.all_pairs(self._features(batch, batch.words))

    def decode(self, batch: Sentences, z: Tensor) -> Float[Tensor, "... batch"]:
        """``log p(x | z)`` of each sentence, for ``z [..., batch, n+1, n+1]``, relaxed included."""
        if are_hard() and self._has_cases(z):
            heads, failed = heads_of(z.flatten(0, -4) if z.dim() > 3 else z[None])
            values = case_log_likelihood(self.decoder, batch, self.vectors_of(batch.words), heads)
            return torch.where(failed, torch.nan, values).view(z.shape[:-2])
        return self.decoder(
            batch.words, self.vectors_of(batch.words), batch.lengths, batch.is_word, z
        )

    def divergence(self, scores: Tensor, batch: Sentences) -> Tensor:
        """The KL term of each sentence."""
        return DIVERGENCES[self.kl](self.structure, scores, **self.context(batch))

    def context(self, batch: Sentences) -> dict[str, Tensor]:
        """Words of each sentence."""
        return {"lengths": batch.lengths}

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        """Not as a VAE: distinct cases are counted on the host, and in a graph each is computed."""
        return self.objective != "vae"

    def loss_at(self, batch: Sentences, scores: Tensor, z: Tensor) -> Tensor:
        """The negative ELBO per word of each sentence, at given trees."""
        if self.objective != "vae":
            raise InputError(
                f"ParserVAE: the objective {self.objective!r} has no latent tree; train it with "
                "the estimator Supervised, or say objective='vae'."
            )
        return super().loss_at(batch, scores, z) / batch.lengths

    def loss(self, batch: Sentences, noise: Noise) -> Float[Tensor, " batch"]:
        """What the objective says, per word of each sentence."""
        if self.objective == "vae":
            return super().loss(batch, noise)
        if self.objective == "decoder":
            return -self.decode(batch, batch.z.to(self.vectors_dtype)) / batch.lengths
        return self._supervised(batch, noise)

    def population_losses(self, population: Population, batch: Any, noise: Noise) -> Any:
        """``[members, batch]`` with exact savings, where the decoder is no member's own."""
        if not self._has_savings():
            return NotImplemented
        return population_losses(self, population, batch, noise)

    def member_bytes(self, batch: Sentences) -> int | None:
        """What a member takes in `population_losses`, which cuts its own work into blocks."""
        return 100 * batch.words.numel() if self._has_savings() else None

    def touched(self, batch: Sentences) -> dict[str, Tensor]:
        """Which rows of the words' vectors a batch can move; the others' gradient is zero."""
        mask = torch.zeros_like(self.drop_chance)
        known = batch.words < len(mask)
        mask = mask.index_fill(0, torch.where(known, batch.words, 0).flatten(), 1.0)
        return {"parser.words.weight": mask[:, None]}

    @overload
    def parse(self, sentences: Sentences) -> tuple[Tensor, Tensor]: ...

    @overload
    def parse(self, sentences: Sequence[str], *, max_words: int = ...) -> ParsedSentence: ...

    @overload
    def parse(
        self, sentences: Sequence[list[str] | tuple[str, ...]], *, max_words: int = ...
    ) -> list[ParsedSentence]: ...

    def parse(self, sentences: Any, *, max_words: int = MAX_WORDS) -> Any:
        """The best tree of a sentence, or of each of a list of sentences.

        Words below the root are labelled ``root`` and no others are, where labels have that name.

        Args:
            sentences: A list of words, a list of such lists, or a batch.
            max_words: A longer sentence is refused; a batch is not asked.

        Returns:
            A `ParsedSentence`, with ``heads`` and ``labels``; a list of them for a list of
            sentences; for a batch two tensors ``[batch, tokens]``, heads and the numbers of labels.

        Raises:
            InputError: Something is no word: empty, or with a tab or line end in it.

        Example:
            >>> from nestruct.data import Grammar
            >>> data = Grammar(num_train=20)
            >>> model = ParserVAE(data.vocabulary, data.vectors, lstm_size=8)
            >>> len(model.parse(["The", "dog", "barks"]).heads)  # untrained: any tree
            3
        """
        if isinstance(sentences, Sentences):
            return self._best_trees(sentences)
        return parse_words(self, sentences, max_words)

    def read_vectors(self, file: str | Path, words: Iterable[str] | None = None) -> int:
        """Lets the parser know words that training had not, by their vectors.

        A run keeps the vectors of the words of its treebanks only. The file's others have the same
        space, so the parser can use them; the file must be the one that it was trained with.

        Args:
            file: Word vectors, text or ``.npz``; see `nestruct.data.find_vectors`.
            words: Which words are wanted: a large file is faster, and takes less memory. All when
                None.

        Returns:
            How many words are new.
        """
        return read_vectors(self, file, words)

    @torch.no_grad()
    def _best_trees(
        self, batch: Sentences
    ) -> tuple[Int[Tensor, "batch tokens"], Int[Tensor, "batch tokens"]]:
        """Heads, and the best label of each word with its head."""
        features = self._features(batch, batch.words)
        scores = self.parser.arc.all_pairs(features)
        heads = self.structure.argmax(scores, **self.context(batch)).argmax(-2)
        labels = self.parser.label.at_heads(features, heads)
        if "root" in self.vocabulary.labels:
            numbers = torch.arange(labels.shape[-1], device=labels.device)
            is_root = numbers == self.vocabulary.labels.index("root")
            labels = torch.where(is_root == (heads == 0)[..., None], labels, -torch.inf)
        return heads, labels.argmax(-1)

    @torch.no_grad()
    def metrics(self, batch: Sentences, noise: Noise) -> dict[str, Any]:
        """Attachment scores of the best tree, the loss, and how well the decoder writes.

        ``uas``, ``las``: the share of words with the right head, and with the right label too;
        punctuation does not count, as published; ``uas_all``, ``las_all``: of all words. Labels
        are those of the heads that were found. ``nll``: nats per word, given the true tree.
        """
        heads, labels = self.parse(batch)
        attached = (heads == batch.heads) & batch.is_word
        labelled = attached & (labels == batch.labels)
        scored = batch.scored.sum(1)
        nll = -self.decode(batch, batch.z.to(self.vectors_dtype))
        return {
            "loss": self.loss(batch, noise),
            "uas": ((attached & batch.scored).sum(1), scored),
            "las": ((labelled & batch.scored).sum(1), scored),
            "uas_all": (attached.sum(1), batch.lengths),
            "las_all": (labelled.sum(1), batch.lengths),
            "nll": (nll, batch.lengths),
        }

    @torch.no_grad()
    def details(self, batch: Sentences) -> dict[str, Any]:
        """How many words of each sentence are attached rightly; see `count_attached`."""
        return count_attached(self, batch)

    def read_file(
        self, file: str | Path, *, skip_bad: bool = False, max_words: int = MAX_WORDS
    ) -> Sentences:
        """The sentences of a CoNLL-U file, with their trees."""
        return read_sentences(file, self.vocabulary, skip_bad=skip_bad, max_words=max_words)

    def needs_start(self, start: Mapping[str, Any] | None) -> str | None:
        """Which phase is missing: each goes on with what the one before it learnt."""
        if start is None and self.objective != "parser":
            return (
                f"The objective {self.objective!r} goes on with what another run learnt, and none "
                "is named: it starts from nothing. Is --init-from DIR missing?"
            )
        if start is not None and self.objective == "vae" and start.get("objective") == "parser":
            return (
                "The run to start from trained a parser, no decoder, so this one starts with a "
                "random one. Is the phase between missing, decoder-source?"
            )
        return None

    def get_extra_state(self) -> dict[str, Any]:
        """The vocabulary, which a checkpoint keeps: a run needs no data to parse."""
        return self.vocabulary.to_state()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Refuses parameters for other words."""
        if Vocabulary.from_state(state) != self.vocabulary:
            raise RuntimeError("they know other words or labels (other treebanks, or data.words).")

    @staticmethod
    def given_by(state: dict[str, Any]) -> dict[str, Any]:
        """What the data decided about a model, from its ``state_dict``."""
        vocabulary = Vocabulary.from_state(state["_extra_state"])
        return {"vocabulary": vocabulary, "vectors": state["vectors"]}

    @property
    def vectors_dtype(self) -> torch.dtype:
        """The dtype of what is computed; fixed vectors may be kept in a shorter one."""
        return self.drop_chance.dtype

    def vectors_of(
        self, words: Int[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens vector"]:
        """The fixed vector of each word, in the dtype of what is computed."""
        return self.vectors[words].to(self.vectors_dtype)

    def _features(
        self,
        batch: Sentences,
        words: Int[Tensor, "batch tokens"],
        vectors: Float[Tensor, "batch tokens vector"] | None = None,
    ) -> Float[Tensor, "batch tokens features"]:
        vectors = self.vectors_of(words) if vectors is None else vectors
        return self.parser.features(words, vectors, batch.lengths)

    def _has_savings(self) -> bool:
        """Whether this is exactly the model that the savings are derived for, decoder frozen."""
        if not overrides_nothing(self, ParserVAE, "_features", "vectors_of"):
            return False
        frozen = not any(p.requires_grad for p in (*self.decoder.parameters(), self.vectors))
        return self.objective == "vae" and frozen

    def _has_cases(self, z: Tensor) -> bool:
        """Whether distinct cases are counted: on the host, and where trees may share some."""
        # Numbers of a vmapped or captured tensor cannot be looked at; torch has no public question.
        if torch._C._functorch.is_batchedtensor(z) or is_capturing(z):
            return False
        trained = torch.is_grad_enabled() and self.decoder.output.weight.requires_grad
        return z.dim() > 3 or not trained

    def _supervised(self, batch: Sentences, noise: Noise) -> Float[Tensor, " batch"]:
        words, vectors = batch.words, self.vectors_of(batch.words)
        if self.training:
            known = words < len(self.drop_chance)
            chance = torch.where(known, self.drop_chance[torch.where(known, words, 0)], 0.0)
            # The chance that a standard Gumbel draw is at most x is exp(-exp(-x)).
            first = torch.exp(-torch.exp(-noise.gumbel(chance))) < chance
            second = noise.replace(stream=1).gumbel(chance) < 0.3665129  # the median
            vectors = torch.where((first & second)[..., None], self.vectors_of(words * 0), vectors)
            words = torch.where(first, 0, words)
        features = self._features(batch, words, vectors)
        scores = self.parser.arc.all_pairs(features)
        possible = self.structure.counting(scores, **self.context(batch))
        scores = torch.where(possible, scores, -1e9)
        heads = scores.log_softmax(1).gather(1, batch.heads[:, None])[:, 0]
        labels = self.parser.label.at_heads(features, batch.heads).log_softmax(-1)
        labels = labels.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
        total = torch.where(batch.is_word, heads + labels, 0.0).sum(1)
        return -total / batch.lengths
