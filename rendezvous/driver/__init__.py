"""Between the machines and a store: threads that make blocking calls and post the answers as events.

May import `rendezvous/codec`, `rendezvous/coordinator` and the contract in `rendezvous/store.py`; no store by name.
"""
