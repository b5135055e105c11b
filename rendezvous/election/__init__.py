"""Which node hosts the c10d store next, once its host is dead or has left: a pure machine, and who may vote.

May import `proto` only.
"""
