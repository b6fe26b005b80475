"""What Figure 2 of the paper times: three models, their random data, and the methods compared.

The paper says: n Gaussian trajectories of 10 steps; 32 random sentences of n words out of 10,000;
N = 4. Not how many sets of trajectories: one here, which is what the K80 GPUs of its authors had
memory for at n = 250. Nor the steps of its Markov chain: of the order of n log n, see below.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nestruct.data import Sentences, Vocabulary
from nestruct.estimators import DPP, NES, SST, Reinforce, SparseMAP
from nestruct.models import ParserVAE, RelationalVAE, StructuredModel
from nestruct.noise import forked_generators

# Each task's methods; NES comes first, with few members and with as many as in training.
TASKS: dict[str, tuple[str, ...]] = {
    "relational": ("NES", "SST", "REINFORCE"),
    "projective": ("NES", "DPP"),
    "non-projective": ("NES", "SparseMAP"),
}

_GPU_FLOATS = 1 << 33  # of all members that are evaluated at once: 32 GiB


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Everything that is the same at all sizes; the defaults are the paper's, where it says.

    Args:
        few_members: N of the paper's figure.
        relational_members: N in training (Table 1).
        parsing_members: N in training (Table 2).
        num_sets: Sets of n trajectories in a batch.
        num_times: Positions of a trajectory.
        num_rollout_steps: Of the relational decoder, as in the paper's NES runs.
        hidden_size: Of the relational model.
        num_sentences: In a batch.
        num_words: The vocabulary.
        vector_size: Numbers of a word's fixed vector.
        lstm_size: Hidden units of each direction of the parser.
        matmul_precision: Of float32 products on a GPU.
    """

    few_members: int = 4
    relational_members: int = 600
    parsing_members: int = 400
    num_sets: int = 1
    num_times: int = 10
    num_rollout_steps: int = 3
    hidden_size: int = 256
    num_sentences: int = 32
    num_words: int = 10_000
    vector_size: int = 300
    lstm_size: int = 125
    matmul_precision: str = "high"

    def members(self, task: str, method: str) -> tuple[int, ...]:
        """The population sizes of a method; 1 for those that differentiate."""
        if method != "NES":
            return (1,)
        many = self.relational_members if task == "relational" else self.parsing_members
        return (self.few_members, many)


def build(task: str, size: int, seed: int, protocol: Protocol) -> tuple[StructuredModel, Any]:
    """A model with random parameters, and a random batch."""
    with forked_generators():
        torch.manual_seed(seed)
        if task == "relational":
            model: StructuredModel = RelationalVAE(
                size,
                protocol.num_times,
                hidden_size=protocol.hidden_size,
                num_rollout_steps=protocol.num_rollout_steps,
                kl_weight=2.0,
            )
            return model, {"x": torch.randn(protocol.num_sets, size, protocol.num_times, 2)}
        return _parser(task, protocol), _sentences(size, protocol)


def estimator(
    task: str, method: str, size: int, members: int, protocol: Protocol, *, on_gpu: bool
) -> Any:
    """The estimator of a method, as in the recipes of Tables 1 and 2.

    All sentences have one length here, so on a GPU the steps of a parser are captured where that
    is faster: not with many members, of which only an eager step counts the distinct cases.
    """
    few = members <= protocol.few_members
    graph: Literal["auto", "on"] = "on" if on_gpu and task != "relational" and few else "auto"
    if method == "NES":
        chunk = _chunk(size, members, protocol) if on_gpu and task == "relational" else None
        sigma = 0.01 if task == "relational" else 0.1
        return NES(sigma=sigma, population_size=members, mode="vmap", chunk_size=chunk, graph=graph)
    if method == "REINFORCE":
        return Reinforce(
            num_samples=1,
            baseline="ema",
            law="gibbs",
            sampler="mcmc",
            num_mcmc_steps=num_mcmc_steps(size),
        )
    return {"SST": SST(temperature=0.5), "DPP": DPP(graph=graph), "SparseMAP": SparseMAP()}[method]


def num_mcmc_steps(size: int) -> int:
    """In proportion to n log n, which suffices whatever the scores; 30 for 10 nodes.

    See `nestruct.Reinforce` for what 30 are worth.
    """
    return math.ceil(30 * size * math.log(size) / (10 * math.log(10)))


def evaluations(task: str, members: int) -> int:
    """Forward passes of a NES step: its members, and the centre where statistics follow it."""
    return members + (1 if task == "relational" else 0)


def _chunk(size: int, members: int, protocol: Protocol) -> int:
    """Members of the relational model that a GPU evaluates at once.

    NES would count all that a member allocates one after the other, and then take single pairs,
    each too small to be worth its launches; at a time there are about six grids of pairs.
    """
    starts = math.ceil((protocol.num_times - 1) / protocol.num_rollout_steps)
    grid = protocol.num_sets * starts * size**2 * protocol.hidden_size
    return min(members, max(2, _GPU_FLOATS // (6 * grid) // 2 * 2))


def _parser(structure: str, protocol: Protocol) -> ParserVAE:
    """The model of Table 2, its decoder frozen, for every method alike."""
    words = tuple(f"w{k}" for k in range(protocol.num_words))
    vocabulary = Vocabulary(words, (1,) * len(words), len(words), ("label",))
    return ParserVAE(
        vocabulary,
        torch.randn(len(words), protocol.vector_size),
        structure=structure,
        objective="vae",
        lstm_size=protocol.lstm_size,
    )


def _sentences(size: int, protocol: Protocol) -> Sentences:
    shape = (protocol.num_sentences, size + 1)
    words = torch.randint(2, protocol.num_words, shape)
    words[:, 0] = 1  # the root
    heads: Tensor = torch.arange(size + 1).sub(1).clamp(min=0).expand(shape).clone()
    lengths = torch.full((len(words),), size)
    return Sentences(words, heads, heads * 0, heads >= 0, lengths)
