"""Helpers for tests of programs that use jaxcc."""

from jaxcc.testing._expect import raises_layout as raises_layout
from jaxcc.testing._ranks import assert_rank_invariant as assert_rank_invariant
from jaxcc.testing._rulecheck import RuleCheck as RuleCheck
from jaxcc.testing._rulecheck import rulecheck as rulecheck
