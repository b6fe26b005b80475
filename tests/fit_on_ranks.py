"""What `fit` does with loaders and callbacks, for one process or, under torchrun, for several:
`python fit_on_ranks.py FOLDER` leaves what each rank saw in FOLDER."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import toys
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import nestruct
from nestruct.processes import my_rank, world_size

DATA = TensorDataset(toys.bits(20, 6, seed=3))


def shuffled() -> DataLoader:
    return DataLoader(DATA, batch_size=7, shuffle=True)


def fit(data: Any, **options: Any) -> tuple[list[list[float]], nestruct.FitResult]:
    model = toys.vae()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"max_steps": 7, "progress": False, "log_interval": 1} | options
    result = nestruct.fit(model, nestruct.StructureNES(), sgd, data, **options)
    return [p.flatten().tolist() for p in model.parameters()], result


def refusal(data: Any, **options: Any) -> str:
    try:
        fit(data, **options)
    except nestruct.InputError as error:
        return str(error)
    return ""


def stop(event: nestruct.training.Event) -> None:
    if event.step == 3:
        event.stop()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(my_rank())  # the order does not come from here
    parameters, result = fit(shuffled(), validation=shuffled())
    found: dict[str, Any] = {"parameters": parameters, "best": result.best}
    _, stopped = fit(shuffled(), callbacks=[stop])
    found["stopped"] = [stopped.reason, stopped.step]
    if world_size() > 1:
        shares = DataLoader(DATA, batch_size=7, sampler=DistributedSampler(DATA))
        held_out = TensorDataset(*(tensor + my_rank() for tensor in DATA.tensors))
        found["refused"] = [
            refusal(shares),
            refusal(lambda step: DATA.tensors[0] + my_rank()),
            refusal(shuffled(), validation=DataLoader(held_out)),
        ]
    (folder / f"{world_size()}-{my_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(Path(sys.argv[1]))
    dist.barrier()  # a process that ends while another still reads aborts it, now and then
    dist.destroy_process_group()
