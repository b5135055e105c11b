"""What was asked for: flags, their values and variables, checked once and made into the agent's specification.

May import `agent`, `rendezvous` and `proto`.
"""
