"""How people and programs start an agent: the command line (`cli.py`) and the library (`api.py`).

May import the folders below it: `control`, `agent`, `rendezvous`, `proto`.
"""
