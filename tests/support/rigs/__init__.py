"""What the test files of one subject share: how its processes or state machines are started, asked and waited for."""
