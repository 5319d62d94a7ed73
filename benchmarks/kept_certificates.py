"""Certificates of real files, issued once and kept in a folder: goldens, shipped models, a zoo.

What enters: a folder to keep them in, and a zoo with an index (columns path and label), if there is
one. What leaves: pairs of a model file and a certificate. A file that is refused, or that takes
more than the time it is given, is kept as the reason why, and not tried again.
"""

from __future__ import annotations

import csv
import gzip
import math
import multiprocessing
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, final

from lipcert import Settings, load_model
from lipcert.analysis.certificate import certify
from lipcert.errors import LipCertError

__all__ = ["Kept", "goldens", "kept_in", "shipped", "within", "zoo"]

ROOT: Final = Path(__file__).resolve().parents[1]
SETTINGS: Final = (("box", Settings(batch_size=256)), ("ball", Settings(input_norm=1.0)))
"""inputs in [0, 1], and inputs of norm 1"""
_ENDING: Final = ".lipcert.json"


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """A certificate, and the file that it is about."""

    name: str
    model: Path
    data: bytes


def goldens() -> Iterator[Kept]:
    """Those of released versions."""
    for path in sorted((ROOT / "tests" / "golden").rglob(f"*{_ENDING}")):
        name = path.name.removesuffix(_ENDING)
        yield Kept(f"golden {name}", ROOT / "models" / f"{name}.onnx", path.read_bytes())


def shipped(kept: Path, seconds: float) -> Iterator[Kept]:
    """Of the models that are shipped."""
    for path in sorted((ROOT / "models").glob("*.onnx")):
        yield from _issued(f"shipped {path.stem}", path, kept, seconds, SETTINGS)


def zoo(folder: Path, kept: Path, seconds: float) -> Iterator[Kept]:
    """Of all files of a zoo that can be certified, the smallest first; inputs in [0, 1]."""
    with (folder / "index.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["label"] != "out"]
    for row in sorted(rows, key=lambda row: int(row["bytes"])):
        path = folder / row["path"]
        if path.suffix == ".gz":
            path = kept / _file_name(row["path"]).removesuffix(".gz")
            if not path.exists():
                path.write_bytes(gzip.decompress((folder / row["path"]).read_bytes()))
        yield from _issued(f"zoo {row['path']}", path, kept, seconds, SETTINGS[:1])


def kept_in(kept: Path) -> Iterator[Kept]:
    """All that were issued into a folder."""
    for path in sorted(kept.glob(f"*{_ENDING}")):
        name = path.name.removesuffix(_ENDING)
        yield Kept(name, Path((kept / f"{name}.model").read_text()), path.read_bytes())


def _issued(
    name: str, model: Path, kept: Path, seconds: float, wanted: Sequence[tuple[str, Settings]]
) -> Iterator[Kept]:
    """A certificate for each of the settings, made where there is neither it nor a reason."""
    for label, settings in wanted:
        stem = f"{_file_name(name)}-{label}"
        target, reason = kept / f"{stem}{_ENDING}", kept / f"{stem}.refused"
        if not target.exists() and not reason.exists():
            said = within(seconds, _issue, model, settings, target)
            if not target.exists():
                reason.write_text(said)
        if target.exists():
            yield Kept(f"{name} ({label})", model, target.read_bytes())


def within(seconds: float, work: Callable[..., str], *arguments: object) -> str:
    """What a function says, in a process of its own that may use so many seconds of a processor."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_told, args=(seconds, writer, work, arguments))
    process.start()
    writer.close()
    try:
        said: str = reader.recv()
    except EOFError:
        return f"no answer within {seconds:g} s"
    finally:
        process.join()
    return said


def _told(
    seconds: float, writer: Connection, work: Callable[..., str], arguments: tuple[object, ...]
) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
    writer.send(work(*arguments))


def _issue(model: Path, settings: Settings, target: Path) -> str:
    try:
        data = certify(load_model(model, trusted=True), settings).data
    except LipCertError as error:
        return f"{type(error).__name__}: {error}"
    target.with_name(target.name.removesuffix(_ENDING) + ".model").write_text(str(model))
    target.write_bytes(data)
    return ""


def _file_name(name: str) -> str:
    return name.replace("/", "__").replace(" ", "_")
