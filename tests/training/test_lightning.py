"""Private training under a Trainer; under a fake of it in two ranks, or with something missing."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader

from lipcert.audit.trace.reading import read_trace, verify
from lipcert.errors import NoVerdictError, UsageError
from lipcert.training.lightning import PrivateTraining
from tests.training.runs import BATCH, DELTA, EXAMPLES, Small, clipless, data
from tests.training.world_worker import ranked

LIGHTNING = pytest.importorskip("lightning.pytorch")
EPOCH = EXAMPLES // BATCH
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("uncertified")]


class Module(LIGHTNING.LightningModule):  # type: ignore[misc]
    """As users write it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = Small()
        self.seen = 0

    def training_step(self, batch: tuple[Tensor, Tensor], number: int = 0) -> Tensor:
        self.seen += 1
        x, y = batch
        return self.criterion(self.net(x), y)

    def configure_optimizers(self) -> Adam:
        return Adam(self.parameters(), lr=0.01)


class FakeTrainer:
    """The calls of lightning.pytorch 2.6's Trainer, one device, automatic optimization."""

    def __init__(self, callback: Any, **told: Any) -> None:
        self.callback = callback
        self.max_epochs = self.max_steps = -1
        self.accumulate_grad_batches, self.gradient_clip_val = 1, None
        self.precision, self.should_stop = "32-true", False
        self.wrap: Callable[[nn.Module], nn.Module] = lambda module: module
        self.fit_loop = SimpleNamespace(_data_source=SimpleNamespace(instance=None))
        vars(self).update(told)

    def fit(self, module: Module, loader: Any) -> None:
        source = self.fit_loop._data_source
        source.instance = loader
        source.dataloader = lambda: source.instance
        self.module, self.optimizers = module, [module.configure_optimizers()]
        self.model = self.wrap(module)
        self.callback.on_fit_start(self, module)
        while not self.should_stop:
            for number, batch in enumerate(source.dataloader()):
                self.optimizers[0].step(closure=partial(self._closure, batch))
                self.callback.on_train_batch_end(self, module, None, batch, number)
        self.callback.on_fit_end(self, module)

    def _closure(self, batch: Any) -> Tensor:
        loss: Tensor = self.module.training_step(batch) / self.accumulate_grad_batches
        self.optimizers[0].zero_grad()
        loss.backward()
        return loss


def trainer(callback: Any, max_epochs: int = -1, **told: Any) -> Any:
    return LIGHTNING.Trainer(
        callbacks=[callback],
        max_epochs=max_epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **told,
    )


def callback(folder: Path, model_file: Path, **changes: Any) -> Any:
    given: dict[str, Any] = {"network": "net", "noise_multiplier": 1.0, "record_every": 1,
                             "record_data": True}  # fmt: skip
    return PrivateTraining(
        clipless(), folder=folder, delta=DELTA, model_file=model_file, **(given | changes)
    )


def loader() -> DataLoader[Any]:
    return DataLoader(data(), batch_size=BATCH)


def fitted(
    folder: Path, model_file: Path, until: int = -1, path: Path | None = None, **changes: Any
) -> tuple[Any, Any]:
    """A callback and its trainer, after as many epochs. path: of a checkpoint."""
    own = callback(folder, model_file, **changes)
    made = trainer(own, max_epochs=until)
    made.fit(Module(seed=path is not None), loader(), ckpt_path=path)
    return own, made


def test_a_fit_ends_with_the_budget(tmp_path: Path, model_file: Path) -> None:
    module = Module()
    own = callback(tmp_path / "run", model_file, noise_multiplier=None, target_epsilon=3.0, steps=6)
    made = trainer(own, max_epochs=5)
    made.fit(module, loader())
    assert module.seen == own.private.releases == 6
    assert 2.9 < own.private.epsilon <= 3.0
    assert made.should_stop
    assert not hasattr(module, "criterion")
    assert not made.optimizers[0]._optimizer_step_pre_hooks
    found = verify(tmp_path / "run" / "trace")
    assert (found.faults, found.steps, found.ranks[0].closed) == ((), 6, True)
    for step in read_trace(tmp_path / "run" / "trace").steps():
        assert step.gradients.noised == step.gradients.applied
        assert step.noise is not None


def test_the_plan_is_what_the_trainer_was_told(tmp_path: Path, model_file: Path) -> None:
    own, _ = fitted(tmp_path / "run", model_file, 2)
    assert own.private.ledger.planned == own.private.releases == 2 * EPOCH


def test_a_fit_goes_on_from_a_checkpoint(tmp_path: Path, model_file: Path) -> None:
    """Twice from the same one: weights and optimizer go back, what was spent does not."""
    folder, path = tmp_path / "run", tmp_path / "last.ckpt"
    own, made = fitted(folder, model_file, 2, epochs=4)
    made.save_checkpoint(path)
    first = made.lightning_module
    assert own.private.releases == 2 * EPOCH
    for number, until in enumerate((3, -1)):
        own, made = fitted(folder, model_file, until, path, epochs=4)
        assert made.lightning_module.seen == EPOCH
        assert own.private.releases == (3 + number) * EPOCH
        weights = list(read_trace(folder / "trace").steps())[-EPOCH].weights_before.tensors()
        expected = {f"net.{name}": item for name, item in weights.items()}
        for name, item in first.state_dict().items():
            assert torch.equal(item, torch.from_numpy(expected[name]))
        steps = {int(state["step"]) for state in made.optimizers[0].state.values()}
        assert steps == {3 * EPOCH}


def test_a_checkpoint_without_its_ledger(tmp_path: Path, model_file: Path) -> None:
    path = tmp_path / "last.ckpt"
    _, made = fitted(tmp_path / "run", model_file, 1, epochs=4)
    made.save_checkpoint(path)
    with pytest.raises(UsageError, match="holds no run to continue"):
        fitted(tmp_path / "new", model_file, path=path, epochs=4)
    fitted(tmp_path / "other", model_file, 2, epochs=4)
    (tmp_path / "other" / "ledger.jsonl").unlink()
    (tmp_path / "run" / "ledger.jsonl").rename(tmp_path / "other" / "ledger.jsonl")
    cut = tmp_path / "other" / "ledger.jsonl"
    cut.write_bytes(b"".join(cut.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(NoVerdictError, match="the checkpoint is of a private run after 4 releases"):
        fitted(tmp_path / "other", model_file, path=path, epochs=4)


def test_a_run_in_the_folder_is_not_begun_again(tmp_path: Path, model_file: Path) -> None:
    """But gone on with where that is asked for, also without a checkpoint."""
    fitted(tmp_path / "run", model_file, 1, epochs=2)
    with pytest.raises(UsageError, match="holds a run already"):
        fitted(tmp_path / "run", model_file, epochs=2)
    own, made = fitted(tmp_path / "run", model_file, epochs=2, resume=True)
    assert (made.lightning_module.seen, own.private.releases) == (EPOCH, 2 * EPOCH)


def test_a_fit_that_fails(tmp_path: Path, model_file: Path) -> None:
    class Fails(Module):
        def training_step(self, batch: Any, number: int = 0) -> Tensor:
            if self.seen == 3:
                raise RuntimeError("out of memory")
            return super().training_step(batch, number)

    module = Fails()
    module.criterion = nn.CrossEntropyLoss()
    kept, own = module.criterion, callback(tmp_path / "run", model_file, steps=6)
    made = trainer(own)
    with pytest.raises(RuntimeError, match="out of memory"):
        made.fit(module, loader())
    assert module.criterion is kept
    assert own.private.releases == 3
    assert not made.optimizers[0]._optimizer_step_pre_hooks
    found = verify(tmp_path / "run" / "trace")
    assert (found.faults, found.steps, found.ranks[0].closed) == ((), 3, False)


class TwoOptimizers(Module):
    def configure_optimizers(self) -> tuple[SGD, SGD]:
        both = SGD(self.net.hidden.parameters(), 0.1), SGD(self.net.head.parameters(), 0.1)
        self.automatic_optimization = False
        return both


@pytest.mark.parametrize(
    ("told", "module", "reason"),
    [
        ({"accumulate_grad_batches": 2}, Module, "accumulate_grad_batches=2"),
        ({"gradient_clip_val": 1.0}, Module, "gradient_clip_val=1.0"),
        ({"precision": "bf16-mixed"}, Module, "precision='bf16-mixed'"),
        ({}, TwoOptimizers, "2 optimizers"),
    ],
)
def test_what_a_trainer_would_do_besides(
    told: dict[str, Any], module: type[Module], reason: str, tmp_path: Path, model_file: Path
) -> None:
    with pytest.raises(UsageError, match=reason):
        trainer(callback(tmp_path / "run", model_file, steps=6), **told).fit(module(), loader())
    assert not (tmp_path / "run").exists()


def test_what_is_missing(tmp_path: Path, model_file: Path) -> None:
    folder = tmp_path / "run"
    own = callback(folder, model_file, steps=6)
    with pytest.raises(UsageError, match="come from a list; give one DataLoader"):
        FakeTrainer(own).fit(Module(), [loader()])
    module = Module()
    with pytest.raises(UsageError, match="Lightning 2"):
        own.on_fit_start(_started(module, fit_loop=SimpleNamespace()), module)
    with pytest.raises(UsageError, match="puts a Sequential around"):
        FakeTrainer(own, wrap=nn.Sequential).fit(Module(), loader())
    with pytest.raises(UsageError, match="give epochs or steps"):
        FakeTrainer(callback(folder, model_file)).fit(Module(), loader())
    with pytest.raises(UsageError, match="no network 'other'"):
        FakeTrainer(callback(folder, model_file, network="other")).fit(Module(), loader())


def _started(module: Module, **told: Any) -> FakeTrainer:
    made = FakeTrainer(None, **told)
    made.optimizers, made.model = [module.configure_optimizers()], module
    return made


def test_two_ranks(tmp_path: Path, model_file: Path) -> None:
    """A strategy that wraps the module in DistributedDataParallel, as strategy='ddp' does."""

    def life(rank: int) -> tuple[int, list[float]]:
        module = Module(seed=rank)
        own = callback(tmp_path / "run", model_file, steps=6)
        made = FakeTrainer(own, wrap=DistributedDataParallel)
        made.fit(module, loader())
        assert made.model.require_backward_grad_sync
        weights = [float(item.detach().double().sum()) for item in module.parameters()]
        return own.private.releases, weights

    first, second = ranked(life, 2, tmp_path)
    assert (first.error, second.error) == ("", "")
    assert first.value == second.value
    assert first.value[0] == 6
    assert verify(tmp_path / "run" / "trace").faults == ()
