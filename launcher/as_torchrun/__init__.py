"""In torchrun's place: its Python names on top of our agent, and the switch that puts them where torch has its own.

May import `launcher` and the folders below it. Nothing here imports torch before it is called.
"""
