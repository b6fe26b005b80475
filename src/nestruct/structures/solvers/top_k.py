"""The k best items (Categorical is k = 1): batched torch for every device."""

import numpy as np
import torch
from torch import Tensor

from nestruct.structures.rows import NO_MEMBER, NOT_FINITE, OK


def top_k_batched(rows: Tensor, lengths: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Marks the k largest scores of each row ``[rows, items]``; marks and codes come back."""
    z = torch.zeros_like(rows)
    if k == 1:  # argmax is several times faster than topk on short rows
        best, index = rows.max(-1, keepdim=True)
    else:
        best, index = rows.topk(k, dim=-1, sorted=False)
    z.scatter_(-1, index, 1.0)
    # max and topk put NaN and +inf first: where there is one, the k best show one.
    codes = torch.where((best == -torch.inf).any(-1), NO_MEMBER, OK)
    return z, torch.where(((best != best) | (best == torch.inf)).any(-1), NOT_FINITE, codes)


def top_k_plain(scores: np.ndarray, k: int) -> np.ndarray:
    """The twin: sort, take k."""
    z = np.zeros_like(scores)
    z[np.argsort(-scores, kind="stable")[:k]] = 1
    return z
