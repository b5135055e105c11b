"""The plug-in for stock torchrun: its rendezvous kept in etcd v3. The agent itself uses none of it.

May import `launcher/config` and `rendezvous/etcd`; `store.py` also torch.
"""
