"""Entry point of `lipcert` and `python -m lipcert`."""

from __future__ import annotations

from lipcert.cli.main import cli

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with one of the documented exit codes."""
    cli.main(prog_name="lipcert")


if __name__ == "__main__":
    main()
