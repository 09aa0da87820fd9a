"""The catalogue of error codes: complete, and its examples do what it says."""

import re
from pathlib import Path

import pytest

import jaxcc
from jaxcc.layout import catalogue
from jaxcc.testing import raises_layout

PACKAGE = Path(jaxcc.__file__).parent
RAISED = {
    code
    for path in PACKAGE.rglob("*.py")
    if not path.name.startswith("_codes")
    for code in re.findall(
        r'"((?:LAYOUT|OPTIM|SCHEDULE|CODEGEN|BACKEND|TABLE)_[A-Z_0-9]+)"', path.read_text()
    )
}
RAISED |= {
    code
    for path in (Path(__file__).parents[2] / "ffi").glob("*.[ch]*")
    for code in re.findall(r"\[(BACKEND_[A-Z_]+)\]", path.read_text())
}
WITH_EXAMPLES = [code for code, entry in catalogue.CODES.items() if entry.wrong]


def test_every_code_that_is_raised_is_explained() -> None:
    assert RAISED - set(catalogue.CODES) == set()


def test_every_explained_code_is_raised() -> None:
    assert set(catalogue.CODES) - RAISED == set()


@pytest.mark.parametrize("code", WITH_EXAMPLES)
def test_wrong_example_raises_the_code(code: str) -> None:
    with raises_layout(code):
        exec(catalogue.EXAMPLE_SETUP + catalogue.CODES[code].wrong, {})


@pytest.mark.parametrize("code", WITH_EXAMPLES)
def test_right_example_is_accepted(code: str) -> None:
    exec(catalogue.EXAMPLE_SETUP + catalogue.CODES[code].right, {})


@pytest.mark.parametrize("code", catalogue.CODES)
def test_explanation_shows_title_and_examples(code: str) -> None:
    entry, text = catalogue.CODES[code], catalogue.explain(code)
    assert text.startswith(f"{code}: {entry.title}\n")
    assert ("Wrong:" in text) == bool(entry.wrong)
    assert len(entry.title) < 90 and not entry.title.endswith(".")
