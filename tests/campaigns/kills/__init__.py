"""SIGKILL of an agent and of its helpers: what outlives it, and whether the job goes on where it hosted the store."""
