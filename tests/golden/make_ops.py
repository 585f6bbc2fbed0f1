#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_ops.py > ops/cases.txt: what NumPy makes of small arrays, for tests/ops/test_golden.c.

A case is lines of words: `op NAME UNITS` (of the last place), `par` with integers, `arg` and `out` with a type, a
number of axes, sizes and values. Values are whole and small, so that they and their sums are exact in every type.
"""
import numpy as np

TYPES = {"bool": np.bool_, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "i8": np.int8,
         "i16": np.int16, "i32": np.int32, "i64": np.int64, "f16": np.float16, "bf16": np.float32,
         "f32": np.float32, "f64": np.float64}
ALL = list(TYPES)
REAL = ["f16", "bf16", "f32", "f64"]
WIDER = {"bool": "i32", "i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}
SHAPES = [(5,), (3, 4), (1, 1), (2, 3, 5), (0, 3), (3, 0), (1, 67), (40,)]
rng = np.random.default_rng(7)


def values(t, shape, most=100):
    if t == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    low = 0 if t[0] == "u" else -most
    return rng.integers(low, most + 1, shape).astype(TYPES[t])


def put(kind, t, a):
    a = np.asarray(a)
    flat = [repr(float(v)) if a.dtype.kind == "f" else str(int(v)) for v in a.reshape(-1)]
    print(kind, t, a.ndim, *a.shape, *flat)


kept = {}


def case(name, args, outs, par=(), units=0):
    kept.setdefault((name, args[0][0]), []).append((name, [(t, a.copy()) for t, a in args], outs, par, units))


def write(most=3):
    """Of each operation and type a few cases; those of the types together are all of them, or nearly."""
    for (_, t), cases in kept.items():
        step = max(1, len(cases) // most)
        for name, args, outs, par, units in cases[ALL.index(t) * 5 % step::step]:
            print("op", name, units)
            print("par", len(par), *[int(p) for p in par])
            for kind, a in args:
                put("arg", kind, a)
            for kind, a in outs:
                put("out", kind, a)


def cumulative(t, x, axis, f, reverse, exclusive, unit):
    wide = WIDER.get(t, t) if unit is not None else t
    x = x.astype(TYPES[wide])
    x = np.flip(x, axis) if reverse else x
    y = f(x, axis=axis, dtype=TYPES[wide]) if unit is not None else f(x, axis=axis)
    if exclusive:
        first = np.full_like(np.take(y, [0] if y.shape[axis] else [], axis), unit)
        y = np.concatenate([first, np.delete(y, -1, axis) if y.shape[axis] else y], axis)
    return wide, np.flip(y, axis) if reverse else y


def order(x, axis, descending):
    """Stable both ways; NaN is the largest."""
    if x.dtype.kind == "f":
        nan = np.isnan(x)
        key = np.where(nan, 0, x)
        n = x.shape[axis]
        place = np.broadcast_to(np.arange(n).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]), x.shape)
        if descending:
            return np.lexsort((place, -key, ~nan), axis=axis)
        return np.lexsort((place, key, nan), axis=axis)
    wide = x.astype(object) if x.dtype == np.uint64 else x.astype(np.int64)
    return np.argsort(-wide if descending else wide, axis=axis, kind="stable")


def with_specials(t, x):
    if t in REAL and x.size > 8:
        flat = x.reshape(-1)
        flat[1::7], flat[3::9], flat[5::11] = np.nan, -np.inf, -0.0
    return x


def sorting():
    for t in ALL:
        for shape in SHAPES:
            for axis in range(-1, len(shape) - 1):
                x = with_specials(t, values(t, shape, 9))
                for down in (0, 1):
                    at = order(x, axis, down).astype(np.int32)
                    case("argsort", [(t, x)], [("i32", at)], (axis, down))
                    case("sort", [(t, x)], [(t, np.take_along_axis(x, at.astype(np.int64), axis))], (axis, down))
                k = shape[axis] // 2
                at = np.take(order(x, axis, 1), np.arange(k), axis)
                case("topk", [(t, x)], [(t, np.take_along_axis(x, at, axis)), ("i32", at)], (k, axis))


def running():
    for t in ALL:
        for shape in SHAPES:
            for axis in range(-1, len(shape) - 1):
                for reverse in (0, 1):
                    x, few = values(t, shape, 2), values(t, shape, 1)
                    for exclusive in (0, 1):
                        wide, y = cumulative(t, x, axis, np.cumsum, reverse, exclusive, 0)
                        case("cumsum", [(t, x)], [(wide, y)], (axis, reverse, exclusive))
                        wide, y = cumulative(t, few, axis, np.cumprod, reverse, exclusive, 1)
                        case("cumprod", [(t, few)], [(wide, y)], (axis, reverse, exclusive))
                    x = with_specials(t, values(t, shape))
                    with np.errstate(invalid="ignore"):
                        case("cummax", [(t, x)], [(t, cumulative(t, x, axis, np.maximum.accumulate, reverse, 0, None)[1])],
                             (axis, reverse))
                        case("cummin", [(t, x)], [(t, cumulative(t, x, axis, np.minimum.accumulate, reverse, 0, None)[1])],
                             (axis, reverse))


def reductions():
    for t in ALL:
        for shape in SHAPES:
            for axis in [None, *range(len(shape))]:
                for keep in (0, 1):
                    par = (2**31 - 1 if axis is None else axis, keep)
                    x, few = values(t, shape), values(t, shape, 1)
                    wide = WIDER.get(t, t)
                    y = np.prod(few.astype(TYPES[wide]), axis=axis, keepdims=bool(keep), dtype=TYPES[wide])
                    case("prod", [(t, few)], [(wide, y)], par)
                    case("all", [(t, few)], [("bool", np.all(few, axis=axis, keepdims=bool(keep)))], par)
                    case("any", [(t, few)], [("bool", np.any(few, axis=axis, keepdims=bool(keep)))], par)
                    n = x.size if axis is None else shape[axis]
                    if n == 0:
                        continue
                    case("argmin", [(t, x)], [("i32", np.argmin(x, axis=axis, keepdims=bool(keep)))], par)
                    if n > 1:
                        real = t if t in REAL else "f32"
                        y = np.var(x.astype(np.float64), axis=axis, keepdims=bool(keep), ddof=1)
                        if real in ("f16", "bf16"):
                            y = np.minimum(y, 60000)
                        case("var", [(t, x)], [(real, y)], (*par, 1), 8 if real in ("f32", "f64") else 1)
        x = values(t, (2, 3, 4, 5), 3)
        for axes in ((0, 2), (3, 1), (0, 1, 2), (2,), (-1, 0)):
            for keep in (0, 1):
                wide = WIDER.get(t, t)
                y = np.sum(x, axis=axes, keepdims=bool(keep), dtype=TYPES[wide])
                case("sum_axes", [(t, x)], [(wide, y)], (keep, *axes))
                case("max_axes", [(t, x)], [(t, np.max(x, axis=axes, keepdims=bool(keep)))], (keep, *axes))


def apply_updates(y, places, updates, mode):
    """One after the other, in order."""
    for p, u in zip(places, updates):
        if p is None:
            continue
        if mode == 0:
            y[p] = u
        elif mode == 1:
            y[p] = y[p] | u if y.dtype == bool else y[p] + u
        else:
            y[p] = np.maximum(y[p], u) if mode == 2 else np.minimum(y[p], u)
    return y


def indexing():
    for t in ALL:
        for shape, k in (((4,), 6), ((3, 4), 2), ((2, 3, 5), 7), ((1, 1), 1), ((3, 2), 0)):
            for axis in range(-1, len(shape) - 1):
                n, at_shape = shape[axis], list(shape)
                at_shape[axis] = k
                x, ids = values(t, shape, 20), rng.integers(-1, n + 1, at_shape)
                u = values(t, at_shape, 20)
                inside = (ids >= 0) & (ids < n)
                y = np.where(inside, np.take_along_axis(x, np.clip(ids, 0, n - 1), axis), np.zeros((), x.dtype))
                case("take_along", [(t, x), ("i64", ids)], [(t, y.astype(x.dtype))], (axis,))
                for mode in range(4):
                    places = []
                    for i in np.ndindex(*at_shape):
                        p = list(i)
                        p[axis] = ids[i]
                        places.append(tuple(p) if 0 <= ids[i] < n else None)
                    y = apply_updates(x.copy(), places, u.reshape(-1), mode)
                    case("put_along", [(t, x), ("i32", ids), (t, u)], [(t, y)], (axis, mode))
                rows = rng.integers(-1, n + 1, (2, 2))
                u = values(t, shape[:axis % len(shape)] + (2, 2) + shape[axis % len(shape) + 1:], 20)
                for mode in range(4):
                    y = np.moveaxis(x.copy(), axis, 0)
                    moved = np.moveaxis(u, [axis % len(shape), axis % len(shape) + 1], [0, 1]).reshape((4,) + y.shape[1:])
                    y = apply_updates(y, [r if 0 <= r < n else None for r in rows.reshape(-1)], moved, mode)
                    case("scatter", [(t, x), ("u8" if rows.min() >= 0 else "i16", rows), (t, u)],
                         [(t, np.moveaxis(y, 0, axis))], (axis, mode))
        x = values(t, (3, 4, 2), 20)
        for k in (1, 2, 3):
            ids = np.stack([rng.integers(-1, x.shape[i] + 1, (5,)) for i in range(k)], -1)
            places = [tuple(p) if all(0 <= v < n for v, n in zip(p, x.shape)) else None for p in ids]
            y = np.stack([x[p] if p is not None else np.zeros_like(x[(0,) * k]) for p in places])
            case("gather_nd", [(t, x), ("i32", ids)], [(t, y)])
            u = values(t, y.shape, 20)
            for mode in range(4):
                case("scatter_nd", [(t, x), ("i32", ids), (t, u)], [(t, apply_updates(x.copy(), places, u, mode))], (mode,))
        for start in ((0, 0), (1, 2), (-3, 9), (2, 1)):
            x, u = values(t, (4, 5)), values(t, (2, 3))
            a, b = min(max(start[0], 0), 2), min(max(start[1], 0), 2)
            case("slice_at", [(t, x), ("i32", np.array(start))], [(t, x[a:a + 2, b:b + 3])], (2, 3))
            y = x.copy()
            y[a:a + 2, b:b + 3] = u
            case("slice_update_at", [(t, x), (t, u), ("i64", np.array(start))], [(t, y)])


BIG = 2**63 - 1


def slices():
    for t in ALL:
        x = values(t, (7, 3))
        for start, stop, step in ((None, None, -1), (5, 1, -2), (-2, None, -3), (100, -100, -1), (1, 4, -1), (None, 2, -4),
                                  (0, None, -1), (6, 0, -6), (1, 6, 2)):
            first = BIG if start is None else start
            last = (-BIG - 1 if step < 0 else BIG) if stop is None else stop
            case("slice", [(t, x)], [(t, x[start:stop:step])], (0, first, last, step))
            case("slice", [(t, x.T.copy())], [(t, x.T[:, start:stop:step])], (-1, first, last, step))
        case("flip", [(t, x)], [(t, np.flip(x, 1))], (1,))
        w = np.lib.stride_tricks.as_strided(x.reshape(-1)[2:], (4, 3, 2), [s * x.itemsize for s in (3, 1, 4)])
        case("as_strided", [(t, x)], [(t, w)], (3, 4, 3, 2, 3, 1, 4, 2))
        case("as_strided", [(t, x)], [(t, x.reshape(-1)[18::-4][:4])], (1, 4, -4, 18))


def shapes():
    for t in ALL:
        for rows, columns, k in ((4, 4, 0), (3, 5, 1), (5, 3, -2), (2, 2, 7), (1, 1, 0), (0, 3, 0)):
            case("eye", [(t, np.zeros(1))], [(t, np.eye(rows, columns, k, dtype=TYPES[t]))], (rows, columns, k))
            case("tri", [(t, np.zeros(1))], [(t, np.tri(rows, columns, k, dtype=TYPES[t]))], (rows, columns, k))
            x = values(t, (2, rows, columns))
            case("tril", [(t, x)], [(t, np.tril(x, k))], (k,))
            case("triu", [(t, x)], [(t, np.triu(x, k))], (k,))
            case("diagonal", [(t, x[0])], [(t, np.diagonal(x[0], k).copy() if rows and abs(k) < 3 else np.zeros(0, x.dtype))], (k,))
            case("diag", [(t, x[0, :1].reshape(-1) if rows else x[0, :, 0])],
                 [(t, np.diag(x[0, :1].reshape(-1) if rows else x[0, :, 0], k))], (k,))
        x = values(t, (2, 3, 2))
        for axis in (0, 1, -1):
            case("tile", [(t, x)], [(t, np.concatenate([x] * 3, axis))], (axis, 3))
            case("repeat", [(t, x)], [(t, np.repeat(x, 3, axis))], (axis, 3))
            for by in (0, 1, -2, 7):
                case("roll", [(t, x)], [(t, np.roll(x, by, axis))], (by, axis))
            case("stack", [(t, x), (t, x[::-1])], [(t, np.stack([x, x[::-1]], axis))], (axis,))
        case("repeat", [(t, x)], [(t, np.repeat(x, 0, 1))], (1, 0))
        case("flatten", [(t, x)], [(t, x.reshape(-1))])
        for a, b in ((0, 2), (2, 0), (1, 1), (-1, 1)):
            case("move_axis", [(t, x)], [(t, np.moveaxis(x, a, b))], (a, b))
        parts = np.split(x, 3, 1)
        case("split", [(t, x)], [(t, p) for p in parts], (3, 1))
        padded = np.pad(x, ((1, 0), (0, 2), (3, 1)), constant_values=1)
        case("pad", [(t, x)], [(t, padded)], (1, 0, 3, 0, 2, 1))
    for t in REAL:
        for n in (0, 1, 2, 7):
            case("linspace", [(t, np.zeros(1))], [(t, np.linspace(-2, 5, n))], (-2, 5, n), 0 if t != "f64" else 1)


sorting()
running()
reductions()
indexing()
slices()
shapes()
write()
