"""Secure aggregation: the server learns a sum over sites and no site's own numbers.

The protocol of Bonawitz et al. (CCS 2017), as pure state machines: bytes in, bytes out. The key
work of all exchanges is done in one set-up, which a resumed run repeats for those to come. See
`SecureSumSite` for what a site refuses, and `configs.secure_terms` for the thresholds that make a
consistency exchange unnecessary.
"""

from privacy.secagg_relay import KeyRelay
from privacy.secagg_server import SecureSumServer
from privacy.secagg_site import SecureSumSite, end_run
from privacy.secagg_terms import RunTerms, request_digest

__all__ = ["KeyRelay", "RunTerms", "SecureSumServer", "SecureSumSite", "end_run", "request_digest"]
