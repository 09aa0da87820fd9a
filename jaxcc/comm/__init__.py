"""Collectives, on the backend that a tuning table says is fastest or that the caller names, and
functions along a dimension that ranks hold in blocks."""

from jaxcc.comm._all_reduce import all_reduce as all_reduce
from jaxcc.comm._choose import Choice as Choice
from jaxcc.comm._choose import explain as explain
from jaxcc.comm._combinators_choose import argmax as argmax
from jaxcc.comm._combinators_choose import argmin as argmin
from jaxcc.comm._combinators_choose import top_k as top_k
from jaxcc.comm._combinators_ring import ring as ring
from jaxcc.comm._combinators_ring import ring_attention as ring_attention
from jaxcc.comm._combinators_scan import cummax as cummax
from jaxcc.comm._combinators_scan import cummin as cummin
from jaxcc.comm._combinators_scan import cumprod as cumprod
from jaxcc.comm._combinators_scan import cumsum as cumsum
from jaxcc.comm._combinators_softmax import cross_entropy as cross_entropy
from jaxcc.comm._combinators_softmax import embed as embed
from jaxcc.comm._combinators_softmax import log_softmax as log_softmax
from jaxcc.comm._combinators_softmax import logsumexp as logsumexp
from jaxcc.comm._combinators_softmax import softmax as softmax
from jaxcc.comm._table import Table as Table
