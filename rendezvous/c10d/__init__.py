"""The store on a torch TCPStore that one node serves: client, server, keys, notifications.

May import `rendezvous/store.py` and `rendezvous/endpoint.py`. Only `server.py` imports torch.
"""
