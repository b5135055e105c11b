"""Programs that tests run as workers, and functions that they hand to workers."""

from pathlib import Path

WORKERS = Path(__file__).parent
"""The folder of the programs."""
