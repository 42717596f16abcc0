"""Which drafted tokens the target keeps: rules of one signature."""

from jspec.verify.standard import verify, verify_chain, verify_greedy

__all__ = ["verify", "verify_chain", "verify_greedy"]
