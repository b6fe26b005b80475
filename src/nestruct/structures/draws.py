"""Where exact samples of a Gibbs law come from: a generator of torch's, or a `Noise`.

With a noise every draw belongs to an example, as those of `Noise.gumbel` do: another batch around
it changes nothing, and a captured CUDA graph can hold it.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from nestruct.errors import InputError
from nestruct.noise import Noise, Purpose, derive_seed


class Draws:
    """Random numbers for one call of ``sample``: each call of a method gives new ones.

    Args:
        owner: Whose call this is, for error messages.
        source: A `torch.Generator`, or a `Noise`; its streams ``[samples, 1]`` give several samples
            of every row.
    """

    def __init__(self, owner: str, source: torch.Generator | Noise) -> None:
        if not isinstance(source, torch.Generator | Noise):
            raise InputError(
                f"{owner}: draws must be a torch.Generator, like torch.Generator().manual_seed(0), "
                f"or a nestruct.Noise, got {source!r}."
            )
        streams = source.stream if isinstance(source, Noise) else 0
        if isinstance(streams, Tensor) and streams.shape[1:] != (1,):
            raise InputError(
                f"{owner}: the streams of a noise must have the shape [samples, 1], got "
                f"{tuple(streams.shape)}."
            )
        self._source = source
        self._calls = 0

    def repeat(self, scores: Tensor) -> Tensor:
        """The scores with an axis of samples first, where the noise has several streams."""
        streams = getattr(self._source, "stream", 0)
        return scores.expand(len(streams), *scores.shape) if isinstance(streams, Tensor) else scores

    def uniform(self, like: Tensor) -> Float[Tensor, "..."]:
        """One draw from [0, 1) for each entry; the leading axes are those of repeated scores."""
        if isinstance(self._source, torch.Generator):
            return torch.empty_like(like).uniform_(generator=self._source)
        # Another seed for each call: the streams number the samples.
        seed = derive_seed(self._source.seed, Purpose.GIBBS_SAMPLES, self._calls)
        self._calls += 1
        return self._source.replace(seed=seed).uniform(self._one(like))

    def log_exponential(self, like: Tensor) -> Float[Tensor, "..."]:
        """The logarithms of standard exponential draws, which are minus Gumbel draws."""
        if isinstance(self._source, torch.Generator):
            return torch.empty_like(like).exponential_(generator=self._source).log()
        return (-self.uniform(like).log()).log()

    def gumbel(self, like: Tensor) -> Float[Tensor, "..."]:
        """Standard Gumbel draws; those of a noise are the ones that perturb-and-MAP has."""
        if isinstance(self._source, torch.Generator):
            return -self.log_exponential(like)
        return self._source.gumbel(self._one(like))

    def normal(self, like: Tensor) -> Float[Tensor, "..."]:
        """Standard normal draws; those of a noise are the ones that `Noise.normal` gives."""
        if isinstance(self._source, torch.Generator):
            return torch.empty_like(like).normal_(generator=self._source)
        return self._source.normal(self._one(like))

    def _one(self, like: Tensor) -> Tensor:
        """One sample of all rows: a noise adds the axis of samples itself."""
        assert isinstance(self._source, Noise)
        return like[0] if isinstance(self._source.stream, Tensor) else like
