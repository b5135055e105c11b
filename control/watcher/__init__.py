"""The program `elastic-agent-watch`: runs a table of watches, once or on and on, and advises how often to save.

Imports `agent.errors`, `rendezvous.text` and all other folders of `control`.
"""
