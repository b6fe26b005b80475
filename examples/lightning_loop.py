"""Lightning: an estimator instead of a loss's derivative, by manual optimization.

Eight jobs are put in the order of their deadlines, as in fit_loader.py.

    pip install "nestruct[integrations]" && python examples/lightning_loop.py
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import nestruct

JOBS, FEATURES = 8, 6


class Plan(nestruct.StructuredModel):
    """Jobs -> scores of places -> an order."""

    def __init__(self) -> None:
        super().__init__()
        self.structure, self.place = nestruct.Permutation(JOBS), torch.nn.Linear(FEATURES, 1)

    def encode(self, batch):  # a late job suits a late place
        return self.place(batch[0]) * torch.linspace(-1, 1, JOBS, device=batch[0].device)

    def decode(self, batch, z):  # places that are right, of eight
        return (z * batch[1]).sum((-2, -1))


class Training(lightning.LightningModule):
    """Steps of an estimator."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.estimator = Plan(), nestruct.StructureNES(num_samples=16)
        self.automatic_optimization = False  # the estimator sets .grad

    def training_step(self, batch, number):
        report = self.estimator.backward(self.model, batch, seed=0, step=self.global_step)
        self.optimizers().step()
        self.log("loss", report.loss)

    def validation_step(self, batch, number):
        self.log("in_place", self.model.infer(batch).mul(batch[1]).sum((1, 2)).mean() / JOBS)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.03)


torch.manual_seed(0)
x = torch.randn(1200, JOBS, FEATURES)
order = (x @ torch.linspace(-1, 1, FEATURES)).argsort().argsort()
data = TensorDataset(x, torch.nn.functional.one_hot(order, JOBS).float())
train, held_out = torch.utils.data.random_split(data, [1000, 200])
trainer = lightning.Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
trainer.fit(Training(), DataLoader(train, 50, shuffle=True), DataLoader(held_out, 200))
found = trainer.callback_metrics["in_place"]
print(f"{found:.0%} of the jobs in place; by chance {1 / JOBS:.0%}")
