"""The version of this client, said to the daemon in HELLO."""

__version__ = "0.1.0"
