"""One module for each family of primitives; importing this package registers every rule."""

from jaxcc.layout.rules import (
    collective as collective,
)
from jaxcc.layout.rules import (
    dot as dot,
)
from jaxcc.layout.rules import (
    elementwise as elementwise,
)
from jaxcc.layout.rules import (
    reduce as reduce,
)
from jaxcc.layout.rules import (
    shape as shape,
)
from jaxcc.layout.rules import (
    structure as structure,
)
