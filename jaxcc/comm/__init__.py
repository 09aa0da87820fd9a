"""Collectives, on the backend that a tuning table says is fastest or that the caller names."""

from jaxcc.comm._all_reduce import all_reduce as all_reduce
from jaxcc.comm._choose import Choice as Choice
from jaxcc.comm._choose import explain as explain
from jaxcc.comm._table import Table as Table
