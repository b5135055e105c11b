"""Checkpoints that cannot lie: written aside, checked, and only then given their name.

Handles files and states, not loaders or steps. Stands on `worker.errors`; imports torch.
"""
