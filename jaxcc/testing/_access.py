"""Random operands of equations that read and write at positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxcc.layout._digits import Digit, Digits, count, normal, uniform, whole_dim
from jaxcc.layout._relation import Relation, constant
from jaxcc.testing._claims import random_relation
from jaxcc.testing._sample import PENDING, Rng, random_shape, random_sizes


def _seen(base: Relation, labels: Sequence[int | None], whole: Sequence[int], rng: Rng) -> Relation:
    """An operand that walks the joint dimensions `labels` of `base` as that does, and holds those
    labelled None; now and then something else of that shape."""
    place = {label: dim for dim, label in enumerate(labels) if label is not None}

    def here(digits: Digits) -> Digits:
        return normal(
            Digit(place[d.dim], d.stride, d.size) if d.dim in place else uniform(d.size)[0]
            for d in digits
        )

    dims = [
        whole_dim(dim, size) if label is None else here(base.dims[label])
        for dim, (label, size) in enumerate(zip(labels, whole, strict=True))
    ]
    dims = [uniform(count(digits)) if rng.random() < 0.05 else digits for digits in dims]
    ranks = {axis: here(digits) for axis, digits in base.ranks.items()}
    ranks = {axis: d for axis, d in ranks.items() if any(digit.named for digit in d)}
    ranks = {axis: d for axis, d in ranks.items() if rng.random() < 0.95}
    if rng.random() < 0.1:
        dims, ranks = _interleaved(dims, ranks)
    return Relation(tuple(dims), ranks)


def _interleaved(
    dims: Sequence[Digits], ranks: Mapping[str, Digits]
) -> tuple[list[Digits], dict[str, Digits]]:
    """Every n-th element in the place of a block."""
    out, selected = list(dims), dict(ranks)
    for axis, digits in ranks.items():
        (digit, *_) = digits
        block = whole_dim(digit.dim, digit.stride)
        if len(digits) == 1 and block in out:
            out[out.index(block)] = normal([Digit(digit.dim, digit.size, digit.stride)])
            selected[axis] = whole_dim(digit.dim, digit.size)
    return out, selected


def with_numbers(x: Relation, sizes: Mapping[str, int], rng: Rng) -> Relation:
    """`x` with a scale and pending reductions, or a number everywhere."""
    if rng.random() < 0.1:
        value = float(rng.choice([0.0, 0.0, 2.0]))
        return constant(x.shape, (value, value))
    op = PENDING[int(rng.integers(len(PENDING)))]
    partial = {axis: op for axis in sizes if axis not in x.ranks and rng.random() < 0.25}
    n = next(iter(sizes.values()))
    return replace(x, partial=partial, scale=float(rng.choice([1.0, 1.0, 1.0, n, 1 / n, -2.0])))


def as_positions(x: Relation, sizes: Mapping[str, int], rng: Rng) -> Relation:
    """`x` as positions, which now and then are a number, scaled or pending."""
    if rng.random() < 0.1:
        return constant(x.shape, (1, 1))
    if rng.random() < 0.05:
        return replace(x, scale=2.0)
    if rng.random() < 0.05:
        return replace(x, partial={axis: "sum" for axis in sizes if axis not in x.ranks})
    return x


@dataclass(frozen=True)
class Access:
    """Which dimension of a table is what: `b` pairs with one of the indices, `f` is taken in full,
    `w` a window of it, `p` a position; `extra` more dimensions of the indices count positions.

    Joint dimensions are first those of the table that are `b` or `f`, in order, then the extra
    ones.
    """

    roles: str
    table: tuple[int, ...]
    extra: int
    window: int
    order: tuple[int, ...]
    base: Relation
    joint: tuple[int, ...]
    sizes: Mapping[str, int]

    @property
    def table_labels(self) -> list[int | None]:
        kept = [d for d, role in enumerate(self.roles) if role in "bf"]
        return [kept.index(d) if d in kept else None for d in range(len(self.roles))]

    @property
    def batch_labels(self) -> list[int]:
        """Of the indices' dimensions, in their order."""
        kept = sum(role in "bf" for role in self.roles)
        paired = [self.table_labels[d] for d, role in enumerate(self.roles) if role == "b"]
        labels = [*paired, *range(kept, kept + self.extra)]
        return [label for at in self.order for label in [labels[at]] if label is not None]

    def dims(self, roles: str) -> tuple[int, ...]:
        """The table's dimensions with one of `roles`."""
        return tuple(d for d, role in enumerate(self.roles) if role in roles)

    @property
    def paired(self) -> tuple[int, ...]:
        """For each `b`, the dimension of the indices."""
        return tuple(self.order.index(at) for at in range(len(self.dims("b"))))

    def table_seen(self, rng: Rng) -> Relation:
        """A relation of the table; now and then a rank holds a block of an indexed dimension."""
        x = _seen(self.base, self.table_labels, self.table, rng)
        for dim in self.dims("wp"):
            for axis, n in self.sizes.items():
                block = self.table[dim] // n
                if axis not in x.ranks and block * n == self.table[dim] and rng.random() < 0.05:
                    if block >= self.window:
                        dims = (*x.dims[:dim], whole_dim(dim, block), *x.dims[dim + 1 :])
                        return replace(
                            x, dims=dims, ranks={**x.ranks, axis: (Digit(dim, block, n),)}
                        )
        return x

    def operand(self, labels: Sequence[int | None], sizes: Sequence[int], rng: Rng) -> Relation:
        """A relation of an array whose dimensions are joint ones or, if None, of a size."""
        whole = self.whole(labels, sizes)
        return _seen(self.base, labels, whole, rng)

    def whole(self, labels: Sequence[int | None], sizes: Sequence[int]) -> tuple[int, ...]:
        """The whole shape of such an array."""
        return tuple(
            size if label is None else self.joint[label]
            for label, size in zip(labels, sizes, strict=True)
        )

    @property
    def indices_labels(self) -> list[int | None]:
        return [*self.batch_labels, None]

    def window_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The slice of a table of this shape."""
        cut = {"b": 1, "p": 1, "w": self.window}
        return tuple(cut.get(role, n) for role, n in zip(self.roles, shape, strict=True))


def random_access(rng: Rng, roles: str = "bffwpp", most: int = 2) -> Access:
    """A random access with dimensions of some `roles` and at `most` so many extra ones."""
    sizes = random_sizes(rng)
    roles = "".join(roles[int(k)] for k in rng.integers(len(roles), size=rng.integers(1, 4)))
    table = random_shape(rng, 3)[: len(roles)]
    extra = min(most, int(rng.integers(4)) // 2 + int(rng.integers(2)))
    joint = (
        *(n for n, role in zip(table, roles, strict=True) if role in "bf"),
        *random_shape(rng, 3)[:extra],
    )
    base = random_relation(joint, sizes, rng, pending=(), plain=0.9)
    order = tuple(int(k) for k in rng.permutation(roles.count("b") + extra))
    return Access(roles, table, extra, int(rng.choice([1, 2])), order, base, joint, sizes)
