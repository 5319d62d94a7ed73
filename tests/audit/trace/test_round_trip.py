"""What is written is read back: tensors, records, chains, private files."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import stat
import warnings
from contextlib import closing

import hypothesis.extra.numpy as arrays_of
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from lipcert.audit.trace.blobs import StoredTensor, bytes_of, stored, tensors_in
from lipcert.audit.trace.files import FormError, spelled
from lipcert.audit.trace.reading import event_members, read_trace, verify
from lipcert.audit.trace.records import Arithmetic, Close, Declaration, Resume, Start
from lipcert.audit.trace.writing import PrivateDataWarning, TraceWriter
from lipcert.errors import NoVerdictError, UsageError
from lipcert.measure.precision import Precision
from tests.audit.trace.made import MANIFEST, made, opened, step

TYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda kind: arrays_of.arrays(kind, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=4))
)
NAMED = st.dictionaries(st.text(min_size=1, max_size=5).filter(lambda t: t.isprintable()), ARRAYS)


def joined(tensors: dict[str, StoredTensor]) -> bytes:
    return b"".join(bytes(piece) for piece in bytes_of(tensors))


@given(NAMED)
def test_tensors_come_back(arrays: dict[str, np.ndarray]) -> None:
    data = joined({name: stored(array) for name, array in arrays.items()})
    found = tensors_in(data)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=5))
def test_bfloat16_is_the_upper_half_of_float32(values: list[float]) -> None:
    bits = np.array(values, np.float32).view(np.uint32) >> 16
    found = tensors_in(joined({"x": StoredTensor("BF16", bits.astype(np.uint16))}))["x"]
    assert found.dtype == np.float32
    assert not found.flags.writeable
    assert found.view(np.uint32).tolist() == [int(b) << 16 for b in bits]


@pytest.mark.parametrize("kind", ["c16", "U3", "O", "M8[s]"])
def test_other_types_are_not_stored(kind: str) -> None:
    with pytest.raises(ValueError, match="not stored"):
        stored(np.zeros(2, kind))


@given(NAMED.filter(bool), st.data())
def test_changed_tensor_files_are_refused_or_other_tensors(arrays, data) -> None:
    """No change of a file makes the reader fail in any way but its own."""
    content = bytearray(joined({name: stored(array) for name, array in arrays.items()}))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormError):
        tensors_in(bytes(content[: data.draw(st.integers(0, len(content)))]))


def test_records_come_back(tmp_path) -> None:
    folder = tmp_path / "t"
    with closing(opened(folder)) as writer:
        written = [step(writer, 0), step(writer, 1, detail=False), step(writer, 2), step(writer, 3)]
        for item in written:
            writer.append(item)
    trace = read_trace(folder)
    assert trace.manifest == MANIFEST
    read = [spelled(event_members(item)) for item in trace.steps()]
    assert read == [spelled(event_members(item)) for item in written]
    start, *_, close = trace.events(0)
    assert isinstance(start, Start)
    assert isinstance(close, Close)
    assert close.steps == 4
    assert [item.has_detail for item in trace.steps()] == [True, False, True, True]
    assert math.isnan(list(trace.steps())[3].batches[0].loss)


def test_the_chain_is_what_its_description_says(tmp_path) -> None:
    """Recomputed from the files with nothing but json and hashlib."""
    folder = made(tmp_path / "t")
    previous = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    for line in (folder / "steps-0.jsonl").read_text().splitlines():
        members = json.loads(line)
        digest = members.pop("h")
        assert members["prev"] == previous
        text = json.dumps(members, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == digest
        previous = digest
    for path in (folder / "blobs").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert verify(folder).ranks[0].head == previous


def test_private_data_are_warned_of_once(tmp_path) -> None:
    with pytest.warns(PrivateDataWarning, match="raw private data"):
        TraceWriter(tmp_path / "t", MANIFEST).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TraceWriter(tmp_path / "t", MANIFEST).close()


def test_the_head_depends_on_every_rank(tmp_path) -> None:
    heads = [read_trace(made(tmp_path / str(n), n)).head for n in (1, 2)]
    assert len({*heads, read_trace(tmp_path / "1").head}) == 2


def test_files_are_private(tmp_path) -> None:
    old = os.umask(0)
    try:
        folder = made(tmp_path / "t", 1)
    finally:
        os.umask(old)
    for path in [folder, *folder.rglob("*")]:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"w": (4, 4), "b": (4,)}},
        {"ranks": 2},
        {"model_sha256": "ef" * 32},
        {"declaration": Declaration(steps=11)},
    ],
)
def test_a_trace_of_another_run_is_not_gone_on_with(tmp_path, change) -> None:
    folder = made(tmp_path / "t")
    before = (folder / "steps-0.jsonl").read_bytes()
    with pytest.raises(UsageError, match=f"another run.*{next(iter(change))}"):
        opened(folder, dataclasses.replace(MANIFEST, **change))
    assert (folder / "steps-0.jsonl").read_bytes() == before


def test_other_versions_and_silence_go_on(tmp_path) -> None:
    folder = made(tmp_path / "t")
    silent = dataclasses.replace(MANIFEST, versions={"torch": "3"}, declaration=Declaration())
    opened(folder, silent).close()
    resume = [event for event in read_trace(folder).events(0) if isinstance(event, Resume)]
    assert [item.versions for item in resume] == [{"torch": "3"}]


@pytest.mark.parametrize(
    "wrong",
    [
        Declaration(noise_multiplier=-1.0),
        Declaration(divisor=float("nan")),
        Declaration(steps=-1),
        Declaration(data_sha256="unknown"),
    ],
)
def test_what_no_reader_would_take_is_not_written(tmp_path, wrong: Declaration) -> None:
    with pytest.raises(UsageError, match="cannot be recorded"):
        opened(tmp_path / "t", dataclasses.replace(MANIFEST, declaration=wrong))
    assert not (tmp_path / "t").exists()


def test_other_folders_are_left_alone(tmp_path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(UsageError, match="holds other files"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch) -> None:
    writer = opened(tmp_path / "t")
    writer.append(step(writer, 0, detail=False))
    second = step(writer, 1, detail=False)
    real = os.pwrite

    def half(file: int, data: bytes, place: int) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return real(file, data[:50], place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(NoVerdictError, match="No space left"):
            writer.append(second)
    writer.append(second)
    writer.close()
    assert verify(tmp_path / "t").faults == ()
    assert verify(tmp_path / "t").steps == 2


@pytest.mark.parametrize(
    ("device", "dtype", "autocast", "tf32", "expected"),
    [
        ("cpu", "float32", None, True, Precision.FLOAT32),
        ("cuda", "float32", None, True, Precision.TF32),
        ("cuda", "float32", None, False, Precision.FLOAT32),
        ("cuda", "float32", "bfloat16", True, Precision.BFLOAT16),
        ("cpu", "float64", None, False, Precision.FLOAT64),
        ("cpu", "float8_e4m3fn", None, False, None),
    ],
)
def test_the_arithmetic_of_products(device, dtype, autocast, tf32, expected) -> None:
    """TF32 of convolutions, which torch allows by default, is none of other layers."""
    used = Arithmetic(device, dtype, autocast, False, tf32, False)
    assert used.products(convolves=True) is expected
    plain = expected if expected is not Precision.TF32 else Precision.FLOAT32
    assert used.products(convolves=False) is plain
    assert dataclasses.replace(used, tf32_matmul=tf32).products(convolves=False) is expected
    assert used.stored is {"float32": Precision.FLOAT32, "float64": Precision.FLOAT64}.get(dtype)
