"""A whole step captured in a CUDA graph and replayed: small kernels are bound by their launches."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nestruct.data.batch import map_tensors

log = logging.getLogger("nestruct")


class GraphedStep:
    """Captures ``step(batch, counter)`` once per shape of batch; replays it with new contents."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.captured: dict[Any, Any] = {}

    def __call__(
        self, step: Callable[[Any, Any], Any], model: nn.Module, batch: Any, number: int
    ) -> Any:
        """What ``step`` returns; tensors are overwritten by the next call."""
        shapes: list[Any] = []
        map_tensors(batch, lambda tensor: shapes.append((tensor.shape, tensor.dtype)))
        key = (id(model), model.training, tuple(shapes))
        if key not in self.captured:
            self.captured[key] = self._capture(step, batch, number)
        entry = self.captured[key]
        if entry is None:
            return step(batch, number)
        graph, static, counter, result = entry
        pieces: list[Tensor] = []
        map_tensors(static, pieces.append)
        fresh: list[Tensor] = []
        map_tensors(batch, fresh.append)
        for old, new in zip(pieces, fresh, strict=True):
            old.copy_(new, non_blocking=True)
        counter.fill_(number)
        graph.replay()
        return result

    def _capture(self, step: Callable[[Any, Any], Any], batch: Any, number: int) -> Any:
        static = map_tensors(batch, lambda tensor: tensor.clone())
        device = torch.device("cuda")
        counter = torch.full((), number, device=device)
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    step(static, counter)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = step(static, counter)
        except Exception as error:
            if self.strict:
                raise
            log.info("NES: no CUDA graph (%s).", str(error).splitlines()[0])
            return None
        return graph, static, counter, result
