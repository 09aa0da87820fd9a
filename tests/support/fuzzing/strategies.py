"""Random programs for hypothesis, which makes those that fail as small as it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzzing.choices import DrawnChoices
from fuzzing.generate import recipe
from fuzzing.recipe import Recipe
from hypothesis import strategies as st


@st.composite
def programs(draw: Any, *, right: bool = False) -> tuple[Recipe, Mapping[str, int]]:
    """Programs with the meshes that they are written for; `right` ones are so by construction."""
    return recipe(DrawnChoices(draw, st.integers), right=right)
