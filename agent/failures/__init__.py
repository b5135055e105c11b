"""What one worker's end says: its error file, its exit status, and the kernel's traces (OOM kills, core dumps).

May import `rendezvous` (the values of a failure) and `agent/lifecycle`.
"""
