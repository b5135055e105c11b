"""What surrounds a job in tests: full or dead file systems, a web server that hangs, people who ask its agents.

Also the job of small steps that tests of switches and requests ask something of.
"""
