"""Manifests and lines: what is written is read, in one spelling."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.files import FormError, spelled, understood
from lipcert.audit.trace.reading import EventReader, event_members, manifest_bytes, manifest_in
from lipcert.audit.trace.records import Batch, Close, IndexArray, Manifest, Resume, Start, Step
from tests.core.generated import SCALARS, values_of
from tests.core.test_canonical import VALUES

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
GIVEN = {
    **SCALARS,
    float: st.floats().map(lambda x: x + 0.0),
    Blob: st.builds(Blob, DIGESTS, st.just(Path())),
    IndexArray: st.lists(st.integers(0, 1 << 62), max_size=3).map(
        lambda numbers: np.array(numbers, np.int64)
    ),
}
MANIFESTS = values_of(Manifest, GIVEN).filter(
    lambda m: (
        not set(m.parameters) & set(m.buffers)
        and 0 not in (m.declaration.dataset_size, m.declaration.batch_size)
    )
)
EVENTS = st.one_of([values_of(kind, GIVEN) for kind in (Start, Step, Resume, Close)])
READER = EventReader(Path(), Manifest({}, 1, {}), 0)


def is_whole(batch: Batch) -> bool:
    """Whether every index and tag is that of an example."""
    tags = not batch.tags or len(batch.tags) == batch.examples
    return tags and (batch.index is None or len(batch.index) == batch.examples)


@given(MANIFESTS)
def test_a_manifest_is_read_back(manifest: Manifest) -> None:
    assert manifest_in(manifest_bytes(manifest)) == manifest


@given(EVENTS)
def test_an_event_is_read_back(event: Start | Step | Resume | Close) -> None:
    line = spelled(event_members(event))
    batches = event.batches if isinstance(event, Step) else ()
    if not all(map(is_whole, batches)) or any(0.0 in (b.divisor, b.rate) for b in batches):
        with pytest.raises(FormError, match=r"not as many indices|a divisor or a rate of 0"):
            READER.event(understood(line))
        return
    found = READER.event(understood(line))
    assert type(found) is type(event)
    assert spelled(event_members(found)) == line


@given(EVENTS, st.data())
def test_a_changed_line_is_refused_or_says_so(
    event: Start | Step | Resume | Close, data: st.DataObject
) -> None:
    members = event_members(event)
    name = data.draw(st.sampled_from([*sorted(members), "else"]))
    value = data.draw(VALUES)
    assume(value not in ([], {}, False))  # what a line may leave out
    members[name] = value
    try:
        found = READER.event(members)
    except FormError:
        return
    assert spelled(event_members(found)) == spelled(members)
