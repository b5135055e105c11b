"""Benchmarks of elastic-agent beside torchrun, or of any two launchers that take torchrun's flags.

`python -m benchmarks` runs the table of `rows.py`; README.md says how times are taken.
"""
