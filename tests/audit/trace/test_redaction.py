"""Redaction: nothing of the data remains, what remains is right, and the chain is its own."""

from contextlib import closing

import pytest

from lipcert.audit.trace.reading import read_trace, verify
from lipcert.audit.trace.records import Gradients
from lipcert.audit.trace.redaction import redact
from lipcert.errors import NoVerdictError, UsageError
from tests.audit.trace.made import made, opened, step


def everything(folder) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def spellings(array) -> list[bytes]:
    """How a number of an array could stand in a file."""
    row = array.reshape(-1)[:2]
    return [row.tobytes(), *(repr(item).encode() for item in row.tolist())]


@pytest.mark.parametrize("keep", [False, True])
def test_no_data_remain(tmp_path, keep: bool) -> None:
    folder, out = made(tmp_path / "t", 3), tmp_path / "out"
    redact(folder, out, keep_weights=keep)
    remains = everything(out)
    for original in read_trace(folder).steps():
        gradients = original.gradients
        private = [original.batches[0].tensors, gradients.clean, gradients.noised]
        for blob in private + ([] if keep else [original.weights_before, original.weights_after]):
            assert blob.sha256.encode() not in remains
            for name, array in blob.tensors().items():
                for spelling in spellings(array) if name != "labels" else []:
                    assert len(spelling) < 4 or spelling not in remains, name
        assert str(original.batches[0].index.tolist())[1:-1].replace(" ", "") not in str(remains)
        assert original.noise.generator.encode() not in remains
    assert b"data.npz" not in remains
    assert any((out / "blobs").iterdir()) == keep


def test_what_remains_is_right(tmp_path) -> None:
    folder, out = made(tmp_path / "t", 3), tmp_path / "out"
    redact(folder, out)
    old, new = verify(folder), verify(out)
    assert new.faults == ()
    assert new.trace.manifest.redaction.heads == {0: old.ranks[0].head}
    assert new.trace.manifest.redaction.manifest == old.trace.digest
    assert new.ranks[0].closed
    for before, after in zip(old.trace.steps(), new.trace.steps(), strict=True):
        assert (after.number, after.time) == (before.number, before.time)
        assert after.learning_rates == before.learning_rates
        assert after.noise.std == before.noise.std
        assert after.batches[0].examples == len(after.batches[0].tags) == 5
        assert after.batches[0].rate == before.batches[0].rate
        assert (after.gradients, after.norms) == (Gradients(), {})


def test_equal_indices_and_states_stay_equal(tmp_path) -> None:
    folder, out = tmp_path / "t", tmp_path / "out"
    with closing(opened(folder)) as writer:
        for number in range(20):
            writer.append(step(writer, number, detail=False))
    redact(folder, out)
    pairs = [
        pair
        for old, new in zip(read_trace(folder).steps(), read_trace(out).steps(), strict=True)
        for pair in zip(old.batches[0].index.tolist(), new.batches[0].tags, strict=True)
    ]
    assert len({index for index, _ in pairs}) == len({tag for _, tag in pairs}) == len(set(pairs))
    assert len(set(pairs)) < len(pairs)


def test_keys_are_new_every_time(tmp_path) -> None:
    folder, tags = made(tmp_path / "t", 1), []
    for name in "ab":
        redact(folder, tmp_path / name)
        (found,) = read_trace(tmp_path / name).steps()
        tags.append({*found.batches[0].tags})
    assert tags[0].isdisjoint(tags[1])


def test_a_redacted_trace_can_be_redacted(tmp_path) -> None:
    folder = made(tmp_path / "t", 1)
    redact(folder, tmp_path / "a", keep_weights=True)
    redact(tmp_path / "a", tmp_path / "b")
    (first,), (second,) = read_trace(tmp_path / "a").steps(), read_trace(tmp_path / "b").steps()
    (whole,) = read_trace(folder).steps()
    assert first.weights_before == whole.weights_before
    assert second.weights_before is None
    assert set(first.batches[0].tags).isdisjoint(second.batches[0].tags)
    assert len(second.batches[0].tags) == 5


def test_broken_traces_are_not_redacted(tmp_path) -> None:
    folder = made(tmp_path / "t", 1)
    next((folder / "blobs").iterdir()).unlink()
    with pytest.raises(NoVerdictError, match="not intact"):
        redact(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path) -> None:
    folder = made(tmp_path / "t", 1)
    with pytest.raises(UsageError, match="exists"):
        redact(folder, folder)
