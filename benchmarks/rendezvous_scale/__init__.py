"""What agreement of many nodes costs: real drivers on real sockets, beside torch's own dynamic rendezvous.

`participant.py` is a node without workers; `crowd.py`, `host.py` and `reference.py` run as processes of many
participants, of the coordinator, and of torch's participants. May import the rendezvous of the package, and nothing
above it.
"""
