"""MTP modules for tests: random ones, and what a family's flags are."""

from jspec.drafters.mtp import MTP
from jspec.drafters.mtp_config import MTPConfig
from tests.drafters.eagles import SIZES, sized

MIMO = {"hidden_first": True, "zeroed_first": True}
STEP = {
    **{"unit_norms": True, "normed_features": False, "normed_feed": False},
    **{"own_head": True, "own_embedding": True},
}
NEXT = sized(output_gate=True, rotary_dim=4, qk_norm=True)


def mtp(sizes=SIZES, config=None, **options):
    config = MTPConfig(sizes=sizes, **({"vocab_size": 64} | (config or {})))
    return MTP(config=config, **options)
