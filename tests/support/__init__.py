"""What tests share: a small cluster, real etcd servers, network namespaces, /proc, worker programs, the source tree."""
