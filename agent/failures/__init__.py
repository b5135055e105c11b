"""Why a worker exited: its error file, exit status and last output, and the kernel's traces (OOM kills, core dumps).

May import `rendezvous` (the values of a failure) and `agent/lifecycle`.
"""
