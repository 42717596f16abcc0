"""Which drafted tokens the target keeps: rules of one signature, and their names."""

from jspec.verify.block import verify_block
from jspec.verify.exact import Block, Standard, TargetOnly
from jspec.verify.fly import verify_fly
from jspec.verify.lossy import Fly, Synthetic, Typical
from jspec.verify.names import VERIFICATIONS, check_pair, make_verification, spell
from jspec.verify.standard import verify, verify_chain, verify_greedy
from jspec.verify.synthetic import verify_synthetic
from jspec.verify.target_only import verify_target_only
from jspec.verify.typical import verify_typical
from jspec.verify.verification import AboutVerification, Verification, cut_broken

__all__ = [
    "VERIFICATIONS",
    "AboutVerification",
    "Block",
    "Fly",
    "Standard",
    "Synthetic",
    "TargetOnly",
    "Typical",
    "Verification",
    "check_pair",
    "cut_broken",
    "make_verification",
    "spell",
    "verify",
    "verify_block",
    "verify_chain",
    "verify_fly",
    "verify_greedy",
    "verify_synthetic",
    "verify_target_only",
    "verify_typical",
]
