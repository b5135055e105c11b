"""Which node hosts the c10d store next, once the process of its host is dead: a pure machine, and who may vote.

May import `proto` only.
"""
