"""A whole step captured in a CUDA graph and replayed: small kernels are bound by their launches."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nestruct.data.batch import map_tensors
from nestruct.errors import InputError, first_line

log = logging.getLogger("nestruct")


_MAX_CAPTURED = 32  # batches of padded examples may come in some 25 widths


class GraphedStep:
    """Captures ``step(batch, counter)`` once for each shape of batch; replays it from then on."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.captured: dict[Any, Any] = {}
        self.pool: Any = None

    def __call__(
        self,
        step: Callable[[Any, Any], Any],
        batch: Any,
        number: int,
        *,
        key: Callable[[], tuple[Any, ...]],
        keep: Callable[[], Any],
        capturable: Callable[[], bool],
        changed: Callable[[], Sequence[Tensor]],
    ) -> Any:
        """What ``step`` returns; its tensors are overwritten by the next call.

        Args:
            step: What to capture; its second argument is the step's number, a tensor on the device.
            batch: Copied into the captured step's own.
            number: The step's number.
            key: Gives everything else that the captured step depends on; another key, another
                capture.
            keep: Gives what must stay in memory as long as the captured step.
            capturable: Whether the step may be captured at all.
            changed: Gives what a step changes in place (running statistics), which trying it out
                must not.
        """
        fresh: list[Tensor] = []
        try:
            map_tensors(batch, fresh.append)
        except InputError:
            if self.strict:
                raise
            return step(batch, number)  # a batch of a type of its own: its tensors are not known
        shapes = ((tensor.shape, tensor.dtype) for tensor in fresh)
        name = (*key(), torch.get_float32_matmul_precision(), *shapes)
        if name not in self.captured:
            if len(self.captured) == _MAX_CAPTURED:  # forget the oldest, and its memory
                del self.captured[next(iter(self.captured))]
            entry = None
            if capturable():
                tensors = changed()
                before = [tensor.clone() for tensor in tensors]
                try:
                    entry = self._capture(step, batch, number)
                finally:
                    for tensor, value in zip(tensors, before, strict=True):
                        tensor.copy_(value)
            self.captured[name] = entry, keep()
        entry, _ = self.captured[name]
        if entry is None:
            return step(batch, number)
        graph, static, counter, result = entry
        for old, new in zip(static, fresh, strict=True):
            old.copy_(new, non_blocking=True)
        counter.fill_(number)
        graph.replay()
        return result

    def _capture(self, step: Callable[[Any, Any], Any], batch: Any, number: int) -> Any:
        copy = map_tensors(batch, lambda tensor: tensor.clone())
        static: list[Tensor] = []
        map_tensors(copy, static.append)
        counter = torch.full((), number, device=static[0].device)
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream):
                    for _ in range(2):
                        step(copy, counter)
            finally:
                torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # One memory for all: what a replay leaves there is used before the next one.
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self.pool):
                result = step(copy, counter)
        except Exception as error:
            if self.strict:
                raise
            log.info("No CUDA graph (%s).", first_line(error))
            return None
        return graph, static, counter, result
