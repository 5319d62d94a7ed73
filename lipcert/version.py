"""The version of LipCert."""

from typing import Final

__version__: Final = "0.1.0"

TESTED_TORCH: Final = "'torch==2.13.*'"
"""beside an extra that brings torch, lest pip take the newest"""
