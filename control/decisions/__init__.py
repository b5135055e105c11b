"""What watches decide, without clock, threads or files: when one fires, what is sent when, which interval is best.

Pure: time is an argument. Imports `proto`, `rendezvous.text`.
"""
