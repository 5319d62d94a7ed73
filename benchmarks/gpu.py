"""Private runs and audits on a GPU, beside the same on the processor.

    python -m benchmarks.gpu [--device cuda] [--tables runs twins norms]

runs: every mechanism trains a small network on the device and records the run, which is audited in
every precision that the device knows, and on the processor in float64. A cell is the verdict, the
lower end of ε, and the seconds by the clock.
twins: twin runs of the same, under settings of torch that change how kernels round: the verdict,
the largest difference over what one example may move, and the seconds. Right runs must pass.
norms: by how much norms of gradients and values that are measured in a precision are smaller than
those of float64 on the processor, as a share of the norm, at most and at the 99th percentile, over
shipped networks; and the margin that `lipcert.measure.measured` states. Norms below the floor of
the precision, and what is left where a norm cancels as a whole, are left out. A share above the
margin would make an audit settle what it may not; norms that come out too large only make it replay
the example in float64.

`--device cpu` runs the same without a GPU, where TF32 is left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from benchmarks.private_training import digits_cnn
from lipcert.errors import LipCertError, NoVerdictError
from lipcert.measure.arithmetic import Arithmetic
from lipcert.measure.gradient_norms import NormEngine
from lipcert.measure.lowering import LoweredNetwork
from lipcert.measure.precision import Precision
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    TrainingMechanism,
    WeightClipping,
    make_private,
)
from models.data import digit_images

_FREE: Final[dict[str, Any]] = {"loss": Loss("cross-entropy"), "input_norm": 8.0}
_HELD: Final[dict[str, Any]] = {**_FREE, "bias_norm": 1.0}
MECHANISMS: Final[dict[str, TrainingMechanism]] = {
    "clipless": Clipless(**_HELD),
    "weight-clipping": WeightClipping(**_HELD),
    "fixed-weight-norm": FixedWeightNorm(**_HELD),
    "backprop-clipping": BackpropClipping(**_FREE),
    "gradient-clipping, flat": GradientClipping(clip_norm=1.0, **_FREE),
    "gradient-clipping, group": GradientClipping(clip_norm=1.0, clip_scope="group", **_FREE),
}
STEPS: Final = 30
BATCH: Final = 256
EXAMPLES: Final = 1437
Data = tuple[Tensor, Tensor]
MODELS: Final = Path(__file__).resolve().parent.parent / "models"
SHIPPED: Final = ("digits_mlp", "digits_cnn", "digits_resnet_groupnorm", "digits_vit")
REFERENCE: Final = Arithmetic(torch.device("cpu"), Precision.FLOAT64)


def known_to(device: torch.device) -> Iterator[Arithmetic]:
    """Every arithmetic that the device knows."""
    for precision in Precision:
        try:
            yield Arithmetic(device, precision)
        except NoVerdictError as error:
            sys.stderr.write(f"{error}\n")


def line(*cells: str) -> None:
    """A row of a table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def head(*cells: str) -> None:
    """The first two rows of a table."""
    line(*cells)
    line("---", *["---:"] * (len(cells) - 1))


@contextmanager
def switched(switch: Any, name: str, value: object) -> Iterator[None]:
    """A switch of torch as it is within a block."""
    before = getattr(switch, name)
    setattr(switch, name, value)
    try:
        yield
    finally:
        setattr(switch, name, before)


def rounding(device: torch.device) -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """Settings by which kernels round otherwise, and what they hold for."""
    matrices, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "as torch has it": nullcontext,
        "TF32": lambda: switched(matrices, "fp32_precision", "tf32"),
        "cudnn.benchmark": lambda: switched(cudnn, "benchmark", True),
        CHANNELS_LAST: nullcontext,
        AUTOCAST: lambda: torch.autocast(device.type, torch.bfloat16),
    }


CHANNELS_LAST: Final = "channels last"
AUTOCAST: Final = "autocast to bfloat16"


def train(
    mechanism: TrainingMechanism,
    device: torch.device,
    data: Data,
    how: str = "as torch has it",
    *,
    folder: Path | None = None,
    seed: int | None = None,
) -> nn.Module:
    """A run on the device, recorded where there is a folder."""
    model = digits_cnn().to(device)
    order = torch.channels_last if how == CHANNELS_LAST else torch.contiguous_format
    model.to(memory_format=order)  # type: ignore[call-overload]
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with make_private(
        model, optimizer, DataLoader(TensorDataset(*data), batch_size=BATCH), mechanism,
        delta=1e-5, target_epsilon=8.0, steps=STEPS, dataset_size=EXAMPLES, folder=folder,
        record_every=1 if folder else None, record_data=folder is not None, seed=seed,
        progress=False,
    ) as private:  # fmt: skip
        for x, y in private.loader:
            optimizer.zero_grad()
            with rounding(device)[how]():
                loss = private.criterion(model(x.to(device, memory_format=order)), y.to(device))
            loss.backward()
            optimizer.step()
    Arithmetic(device, Precision.FLOAT32).synchronise()
    return model


def examples() -> Data:
    digits = digit_images((1, 8, 8))
    return digits.images[:EXAMPLES], digits.labels[:EXAMPLES]


def audited(folder: Path, way: Arithmetic) -> str:
    """The verdict on a recorded run, and the seconds that it took by the clock."""
    start = time.perf_counter()
    report = lipcert.audit(
        folder / "model.lipcert.json", model=folder / "model.onnx", trace=folder / "trace",
        device=str(way.device), precision=way.precision,
    )  # fmt: skip
    least = "" if report.epsilon is None else f"ε ≥ {report.epsilon.lower:.2g}, "
    return f"{report.verdict.value}, {least}{time.perf_counter() - start:.1f} s"


def runs_table(device: torch.device) -> None:
    """Recorded runs, and what audits say of them."""
    ways = [*known_to(device), *([REFERENCE] if device.type != "cpu" else [])]
    head(f"{STEPS} steps on {device}", "s", *(f"{w.precision.value}, {w.device}" for w in ways))
    for name, mechanism in MECHANISMS.items():
        with tempfile.TemporaryDirectory() as kept:
            folder = Path(kept) / "run"
            try:
                torch.manual_seed(0)
                start = time.perf_counter()
                train(mechanism, device, examples(), folder=folder, seed=0)
                seconds = time.perf_counter() - start
                line(name, f"{seconds:.1f}", *(audited(folder, way) for way in ways))
            except LipCertError as error:
                line(name, str(error))


def twins_table(device: torch.device) -> None:
    """Right runs that are done again without an example."""
    head(f"twins on {device}", *rounding(device))
    for name, mechanism in MECHANISMS.items():
        line(name, *(twin_of(mechanism, device, how) for how in rounding(device)))


def twin_of(mechanism: TrainingMechanism, device: torch.device, how: str) -> str:
    """What a twin run says, in how many seconds."""
    if how == AUTOCAST and not isinstance(mechanism, GradientClipping):
        return "–"
    start = time.perf_counter()
    report = lipcert.audit.twin(lambda data: train(mechanism, device, data, how), examples())
    seconds = time.perf_counter() - start
    return f"{report.verdict.value}, {report.largest:.3f}, {seconds:.1f} s"


def norms_of(network: str, way: Arithmetic, x: Tensor, y: Tensor) -> dict[str, np.ndarray]:
    """Every norm of a batch that one precision measures, by what it is the norm of."""
    graph = lipcert.load_model(MODELS / f"{network}.onnx").graph
    labels = y.to(way.device)

    def losses_of(scores: Tensor) -> Tensor:
        return functional.cross_entropy(scores.double(), labels, reduction="none")

    with way.active():
        engine = NormEngine(LoweredNetwork.of(graph, way.dtype, way.device))
        found = engine.measure(x.to(way.device, way.dtype), losses_of)
    parts = {"parameter": found.parameters, "value": found.values, "cotangent": found.cotangents}
    return {
        f"{part} {name}": measured.norm
        for part, named in parts.items()
        for name, measured in named.items()
    }


def norms_table(device: torch.device) -> None:
    """What each precision loses of norms, and what it states to lose at most."""
    head(f"norms on {device}", "networks", "norms", "lost: 99th percentile", "largest", "margin")
    digits = digit_images((64,))
    for way in known_to(device):
        shares = []
        for network in SHIPPED:
            shape = lipcert.load_model(MODELS / f"{network}.onnx").graph.input_shape
            x, y = digits.images[:512].reshape(512, *shape), digits.labels[:512]
            exact = norms_of(network, REFERENCE, x, y)
            largest = np.max(list(exact.values()), axis=0)
            least = np.maximum(Precision.FLOAT64.cancelled * largest, way.precision.floor)
            for name, norms in norms_of(network, way, x, y).items():
                truth = exact[name]
                counts = truth > least
                lost = np.maximum(truth - norms, 0.0)
                shares.append(lost[counts] / truth[counts])
        found = np.concatenate(shares)
        percentile = np.quantile(found, 0.99)
        cells = (f"{percentile:.1e}", f"{found.max():.1e}", f"{way.precision.margin:.1e}")
        line(way.precision.value, f"{len(SHIPPED)}", f"{found.size:,}", *cells)


TABLES: Final[dict[str, Callable[[torch.device], None]]] = {
    "runs": runs_table,
    "twins": twins_table,
    "norms": norms_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        sys.stdout.write(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}\n\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in arguments.tables:
            TABLES[name](device)
            sys.stdout.write("\n")


if __name__ == "__main__":
    main()
