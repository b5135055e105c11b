"""The agent's side of its worker processes: orders to the nursery, its reports, environment, ports, preloading.

May import all other folders of `agent` but `zygote`, and the values in `rendezvous/`.
"""
