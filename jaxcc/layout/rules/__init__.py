"""One module for each family of primitives; importing this package registers every rule."""

from jaxcc.layout.rules import (
    collective as collective,
    dot as dot,
    elementwise as elementwise,
    reduce as reduce,
    shape as shape,
    structure as structure,
)
