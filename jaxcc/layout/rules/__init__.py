"""One module for each family of primitives; importing this package registers every rule."""

from jaxcc.layout.rules import (
    along as along,
)
from jaxcc.layout.rules import (
    arithmetic as arithmetic,
)
from jaxcc.layout.rules import (
    choices as choices,
)
from jaxcc.layout.rules import (
    collective as collective,
)
from jaxcc.layout.rules import (
    combinators as combinators,
)
from jaxcc.layout.rules import (
    conv as conv,
)
from jaxcc.layout.rules import (
    dot as dot,
)
from jaxcc.layout.rules import (
    dtypes as dtypes,
)
from jaxcc.layout.rules import (
    elementwise as elementwise,
)
from jaxcc.layout.rules import (
    indexing as indexing,
)
from jaxcc.layout.rules import (
    linalg as linalg,
)
from jaxcc.layout.rules import (
    nested as nested,
)
from jaxcc.layout.rules import (
    ragged as ragged,
)
from jaxcc.layout.rules import (
    random as random,
)
from jaxcc.layout.rules import (
    reduce as reduce,
)
from jaxcc.layout.rules import (
    scatter as scatter,
)
from jaxcc.layout.rules import (
    shape as shape,
)
from jaxcc.layout.rules import (
    stacking as stacking,
)
from jaxcc.layout.rules import (
    structure as structure,
)
from jaxcc.layout.rules import (
    window as window,
)
