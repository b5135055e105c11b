"""Faults of one thread or one connection of an agent, while all others of it live."""
