"""The store between the nodes of a world: without drivers (direct), or behind the production drivers (driver_link),
which run on simulated threads (threads) against a model of TCPStore or etcd (tcpstore and tcpstore_client, etcd) that
all nodes share (shared). May import world.substitution and the sentences of checks."""
