"""The same for jobs on three etcd servers that fail too: plans, runs, the servers' faults and history, the judge."""
