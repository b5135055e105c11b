"""Level `bits`: gradients of V shards of a global batch, summed to the same bits over any number of ranks.

`tree` says in which order (pure), `fold` adds and `exchange` carries, `gradients` and `buffers` know the model,
`sharding` is what `Run` holds, `digest` proves it. Stands on `worker.data`, `worker.keys`, `worker.errors` and
`worker.world`; imports nothing of `worker.run`.
"""
