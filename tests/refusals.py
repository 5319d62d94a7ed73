"""What is refused, and why; or is not, in the same table."""

from contextlib import nullcontext

import pytest

from lipcert.errors import LipCertError


def refused(says: str, by: type[Exception] | tuple[type[Exception], ...] = LipCertError):
    """Expects an error that says this; none where nothing is to be said."""
    return pytest.raises(by, match=says) if says else nullcontext()
