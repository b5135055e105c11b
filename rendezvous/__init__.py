"""Which nodes are in which round: the records that nodes exchange, and the contract of a store that carries them.

`coordinator/` decides, `driver/` acts, `c10d/` and `etcd/` store. May import `proto`.
"""
