"""The plug-in that keeps the rendezvous of stock torchrun in etcd v3. The agent itself does not use it.

May import `launcher/config` and `rendezvous/etcd`; `store.py` also torch.
"""
