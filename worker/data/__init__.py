"""The samples of a training script: their order, their random numbers, and what has been trained on.

Stands on `worker.keys` and `worker.errors`; imports torch, and nothing of `worker.checkpoints`.
"""
