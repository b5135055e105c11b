"""What crosses a process or a host: .proto schemas and the code generated from them. Imports nothing of ours."""
