"""The guide pages of `jaxcc explain`: every block of code does what the page says."""

import re

import pytest

from jaxcc.layout import catalogue
from jaxcc.testing import raises_layout

BLOCKS = [
    pytest.param(block, id=f"{name}-{i}")
    for name in catalogue.GUIDES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", catalogue.guide(name), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_of_code(block: str) -> None:
    refused = re.search(r"# (LAYOUT_\w+)", block)
    program = catalogue.EXAMPLE_SETUP + block
    if refused is None:
        exec(program, {})
        return
    with raises_layout(refused[1]):
        exec(program, {})


def test_every_guide_has_a_title_and_code() -> None:
    assert {"megatron", "psum", "shard_map", "spmd_types"} <= set(catalogue.GUIDES)
    for name, title in catalogue.GUIDES.items():
        text = catalogue.guide(name)
        assert text.startswith(f"# {title}\n") and "```python" in text


def test_codes_and_layouts_that_guides_name_exist() -> None:
    for name in catalogue.GUIDES:
        named = set(re.findall(r"[A-Z]+_[A-Z_]+", catalogue.guide(name)))
        assert {code for code in named if code.startswith("LAYOUT_")} <= set(catalogue.CODES)
