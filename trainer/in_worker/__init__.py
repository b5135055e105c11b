"""What runs in the workers of a trainer: they are made once a round, and then carry out one call after the other.

Stands on `worker`; imports torch, and nothing of `program` or `launcher`.
"""
