"""What surrounds a job in tests of its watches: file systems that are full or dead, a web server that hangs."""
