"""Other engines, each in an environment and a process of its own."""
