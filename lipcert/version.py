"""The version of LipCert."""

from typing import Final

__version__: Final = "0.1.0"

TESTED_TORCH: Final = "'torch==2.13.*'"
"""Given with an extra that brings torch, so that pip does not take the newest."""
