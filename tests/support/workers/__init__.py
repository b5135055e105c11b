"""Programs that tests run as workers, and functions that tests have workers call."""

from pathlib import Path

WORKERS = Path(__file__).parent
"""The folder of the programs."""
