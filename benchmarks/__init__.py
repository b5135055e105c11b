"""Benchmarks of elastic-agent against torchrun, or of any two launchers that take torchrun's flags.

`python -m benchmarks` runs the table of `rows.py`; README.md describes how it measures.
"""
