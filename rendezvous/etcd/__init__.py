"""The store in etcd v3: a client over gRPC, and on it a job's keys, leases, watches and the leader election.

May import `proto`, `rendezvous/codec` and the values in `rendezvous/`; grpc is imported where a connection is made.
"""
