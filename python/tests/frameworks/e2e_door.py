"""larder.torch.DataLoader under the real packages: they take it for torch's class, and get what torch's gives.

Each test compares with the same script on torch's own class.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import pytest
import torch
from torch.utils import data

from larder.torch import DataLoader, StatefulDataLoader

ACCELERATE, LIGHTNING = (pytest.mark.skipif(not find_spec(n), reason=n) for n in ("accelerate", "lightning"))
KINDS = ({}, {"num_workers": 2}, {"cache": "items", "num_workers": 1})  # torch's machinery twice, workers of larder


@pytest.fixture(autouse=True)
def socket(lives, monkeypatch):
    monkeypatch.setenv("LARDER_SOCKET", lives.daemon.socket)


def numbers(n):
    return data.TensorDataset(torch.arange(n))


def ids(batches):
    return [int(i) for (b,) in batches for i in b]


class Epochs(data.Sampler):
    """A batch sampler that shuffles by the epoch that it is told."""

    def __init__(self, n, size):
        self.n, self.batch_size, self.epoch, self.drop_last = n, size, 0, False

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return -(-self.n // self.batch_size)

    def __iter__(self):
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter([order[i : i + self.batch_size] for i in range(0, self.n, self.batch_size)])


def each(kw, script):
    """What a script gives on torch's class, and on larder's."""
    of_torch = {n: v for n, v in kw.items() if n == "num_workers"}
    made = (lambda *a, **k: data.DataLoader(*a, **k, **of_torch), lambda *a, **k: DataLoader(*a, **k, **kw))
    return tuple(map(script, made))


@ACCELERATE
@pytest.mark.parametrize("kw", KINDS, ids=str)
def test_a_loader_that_is_made_again_skips_what_was_seen(kw):
    """As a script does that resumes in the midst of an epoch: no sample comes twice, none is missing."""
    accelerate = importlib.import_module("accelerate")

    def script(make):
        torch.manual_seed(3)
        it = iter(make(numbers(600), 16, shuffle=True))
        head = [next(it) for _ in range(4)]
        torch.manual_seed(3)
        return ids(head), ids(accelerate.skip_first_batches(make(numbers(600), 16, shuffle=True), 4))

    want, got = each(kw, script)
    assert sorted(want[0] + want[1]) == list(range(600))
    assert sorted(got[0] + got[1]) == list(range(600)) and got == want


@ACCELERATE
@pytest.mark.parametrize("kw", KINDS, ids=str)
def test_a_prepared_loader_is_told_its_epoch(kw):
    accelerate = importlib.import_module("accelerate")

    def script(make):
        loader = accelerate.Accelerator(cpu=True).prepare(make(numbers(50), batch_sampler=Epochs(50, 8)))
        seen = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            seen.append(ids(loader))
        return seen

    want, got = each(kw, script)
    assert got == want and got[0] != got[1] and sorted(got[0]) == list(range(50))


@ACCELERATE
@pytest.mark.parametrize("kw", KINDS, ids=str)
def test_the_end_of_a_loader_ends_an_accumulation(kw):
    accelerate = importlib.import_module("accelerate")

    def script(make):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        net = torch.nn.Linear(1, 1)
        net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), make(numbers(52), 4))
        steps = []
        for _ in range(2):
            steps.append(0)
            for (x,) in loader:
                with accelerator.accumulate(net):
                    accelerator.backward(net(x[:, None].float()).sum())
                    optimizer.step()
                    steps[-1] += accelerator.sync_gradients
                    optimizer.zero_grad()
        return steps

    want, got = each(kw, script)
    assert got == want == [4, 4]


@LIGHTNING
@pytest.mark.parametrize("kw", KINDS, ids=str)
def test_lightning_replaces_its_sampler_and_combines_it(kw, tmp_path):
    lightning = importlib.import_module("lightning.pytorch")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, _):
            parts = batch if isinstance(batch, dict) else {"a": batch}
            self.seen.append({k: v[0].tolist() for k, v in parts.items()})
            return sum(self.net(v[0][:, None].float()).sum() for v in parts.values())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.0)

    def script(make, loaders, **trainer):
        torch.manual_seed(1)
        net = Net()
        lightning.Trainer(
            accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, **trainer,
        ).fit(net, loaders(make))  # fmt: skip
        return net.seen

    def one(make):
        return make(numbers(20), 4, shuffle=True)

    def combined(make):
        utilities = importlib.import_module("lightning.pytorch.utilities")
        return utilities.CombinedLoader({"a": make(numbers(12), 4), "b": make(numbers(9), 3)}, "max_size")

    want, got = each(kw, lambda make: script(make, one, overfit_batches=2))
    assert got == want and len(got) == 4
    want, got = each(kw, lambda make: script(make, combined))
    assert got == want and len(got) == 6


@pytest.mark.parametrize("kw", KINDS, ids=str)
def test_the_name_of_torchdata(kw):
    items = numbers(20)  # one object: without name= workers know no other one as the same dataset
    loader = StatefulDataLoader(items, 4, snapshot_every_n_steps=3, **kw)
    it = iter(loader)
    head = ids([next(it)])
    other = StatefulDataLoader(items, 4, **kw)
    other.load_state_dict(loader.state_dict())
    assert head + ids(other) == list(range(20))
