# SPDX-License-Identifier: Apache-2.0
"""Minimax fits behind src/cpu/kernels/vec_math.inl: a plain Remez exchange (needs mpmath).

Prints, for each fit, the largest weighted error and the coefficients from the constant up. The
weights make the error relative to the function that the polynomial is a part of.
"""
from mpmath import cos, erf, erfc, exp, log, log1p, lu_solve, matrix, mp, mpf, nstr, pi, polyval
from mpmath import sign, sin, sqrt, tanh

mp.prec = 160
TINY = mpf("1e-9")


def fit(name, f, weight, low, high, degree, rounds=8, points=600):
    n = degree + 2
    mid, half = (low + high) / 2, (high - low) / 2
    nodes = [mid + half * cos(pi * (n - 1 - i) / (n - 1)) for i in range(n)]
    grid = [mid - half * cos(pi * i / points) for i in range(points + 1)]
    want, scale = [f(x) for x in grid], [weight(x) for x in grid]
    for _ in range(rounds):
        a, b = matrix(n, n), matrix(n, 1)
        for i, x in enumerate(nodes):
            for j in range(degree + 1):
                a[i, j] = x**j
            a[i, degree + 1] = (-1) ** i / weight(x)
            b[i] = f(x)
        c = lu_solve(a, b)
        poly = [c[j] for j in range(degree, -1, -1)]
        error = [s * (y - polyval(poly, x)) for x, y, s in zip(grid, want, scale)]
        peaks, best = [], 0
        for i in range(1, points + 1):
            if sign(error[i]) != sign(error[best]):
                peaks.append(best)
                best = i
            elif abs(error[i]) > abs(error[best]):
                best = i
        peaks.append(best)
        if len(peaks) < n:
            break
        while len(peaks) > n:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        nodes = [grid[i] for i in peaks]
    print(name, "largest error", nstr(max(abs(e) for e in error), 4))
    for j in range(degree + 1):
        print("   ", nstr(c[j], 12))


def odd_part(f, at_zero):
    """(f(x) - x) / x^3 as a function of z = x^2."""
    return lambda z: (f(sqrt(z)) - sqrt(z)) / sqrt(z) ** 3 if z > TINY**2 else at_zero


reach = log(2) / 2 * mpf("1.01")
fit("exp: (exp r - 1 - r) / r^2", lambda r: (exp(r) - 1 - r) / r**2 if abs(r) > TINY else mpf("0.5"),
    lambda r: r**2 / exp(r) + TINY, -reach, reach, 4)
fit("log: (log(1 + f) - f + f^2 / 2) / f^3",
    lambda f: (log1p(f) - f + f * f / 2) / f**3 if abs(f) > TINY else mpf(1) / 3,
    lambda f: (abs(f**3 / log1p(f)) if abs(f) > TINY else 0) + TINY,
    sqrt(mpf("0.5")) - 1 - mpf("1e-3"), sqrt(mpf(2)) - 1 + mpf("1e-3"), 8)
fit("tanh, z = x^2", odd_part(tanh, mpf(-1) / 3), lambda z: z + TINY, mpf(0),
    mpf("0.625") ** 2, 4)
fit("erf x / x - 1, z = x^2",
    lambda z: erf(sqrt(z)) / sqrt(z) - 1 if z > TINY**2 else 2 / sqrt(pi) - 1,
    lambda z: mpf(1), mpf(0), mpf("0.95") ** 2, 6)
fit("log erfc", lambda t: log(erfc(t)), erfc, mpf("0.9"), mpf(4), 7)
quarter = (pi / 4 * mpf("1.01")) ** 2
fit("sin, z = x^2", odd_part(sin, mpf(-1) / 6), lambda z: z + TINY, mpf(0), quarter, 3)
fit("cos: (cos x - 1 + z / 2) / z^2",
    lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2 if z > TINY else mpf(1) / 24,
    lambda z: z * z + TINY, mpf(0), quarter, 2)
