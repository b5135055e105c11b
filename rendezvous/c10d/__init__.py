"""The store on a torch TCPStore that one node serves: client, server, keys, notifications.

May import `rendezvous/codec` and the values in `rendezvous/`; only `server.py` imports torch.
"""
