"""What PYTHONPATH names while the switch is on. May import nothing of ours by itself: every Python below the switch
imports its `sitecustomize`.
"""
