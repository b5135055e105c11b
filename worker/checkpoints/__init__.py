"""Checkpoints that cannot lie: written aside, checked, and only then given their name.

Knows files and states, and nothing of loaders or steps. Stands on `worker.errors`; imports torch.
"""
