"""The store in etcd v3: a client over gRPC, keys, leases, watches, election.

May import `proto`, `rendezvous/codec` and the values in `rendezvous/`; grpc is imported where a connection is made.
"""
