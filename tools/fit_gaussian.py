"""Find the terms of GAUSSIAN in src/softorder/_kernels/profiles.py: a minute or two.

    python tools/fit_gaussian.py [TERMS] [ITERATIONS]

exp(-u^2) sqrt(pi) is the integral of exp(z) sqrt(pi / z) exp(-2 sqrt(z) u) dz / (2 pi i). With
exp(z) replaced by its best rational approximation on the negative axis, that is a sum over poles
z_m with residues c_m: weights proportional to c_m / sqrt(z_m), decays 2 sqrt(z_m). The
approximation is found by the Caratheodory-Fejer method (Trefethen, Weideman and Schmelzer, 2006)
in float64; the terms are then fitted to exp(-u^2) and to its derivative by Levenberg and
Marquardt's method in 50 digits.
"""

import sys

import mpmath as mp
import numpy as np
from scipy.linalg import hankel, svd

SLOPE_WEIGHT = mp.mpf("0.05")
COEFFICIENTS, POINTS, SCALE = 75, 1024, 9.0


def best_rational(poles):
    """Return poles and residues of the near-best approximation of exp on the negative axis."""
    circle = np.exp(2j * np.pi * np.arange(POINTS) / POINTS)
    f = np.exp(SCALE * (circle.real - 1) / (circle.real + 1 + 1e-16))
    c = np.fft.fft(f).real / POINTS
    left, sizes, right = svd(hankel(c[1 : COEFFICIENTS + 1]))
    u, v, size = left[::-1, poles], right[poles], sizes[poles]
    padding = np.zeros(POINTS - COEFFICIENTS)
    blaschke = np.fft.fft(np.r_[u, padding]) / np.fft.fft(np.r_[v, padding])
    smooth = np.polyval(c[COEFFICIENTS::-1], circle) - size * circle**COEFFICIENTS * blaschke
    roots = np.roots(v)
    q = roots[abs(roots) > 1]
    numerator = np.fft.fft(smooth * np.polyval(np.poly(q), circle)).real / POINTS
    others = [np.poly(np.delete(q, k)) for k in range(len(q))]
    residues = np.array(
        [
            np.polyval(numerator[poles::-1], x) / np.polyval(o, x)
            for x, o in zip(q, others, strict=True)
        ]
    )
    z = SCALE * (q - 1) ** 2 / (q + 1) ** 2
    return z, 4 * residues * z / (q**2 - 1)


def starting_values(terms):
    """Return [weight re, weight im, decay re, decay im] of each term, one after the other."""
    z, c = best_rational(2 * terms)
    above = z.imag > 0  # complex ones come in pairs
    weight, decay = -2 * np.sqrt(np.pi) * c[above] / np.sqrt(z[above]), 2 * np.sqrt(z[above])
    pairs = zip(weight, decay, strict=True)
    return [mp.mpf(x) for w, t in pairs for x in (w.real, w.imag, t.real, t.imag)]


def residuals(parameters, places):
    """Return the errors of value and slope at all places, and their Jacobian."""
    errors, jacobian = [], []
    for u in places:
        value, slope = -mp.exp(-u * u), 2 * u * mp.exp(-u * u)
        of_value, of_slope = [], []
        for k in range(0, len(parameters), 4):
            weight, decay = mp.mpc(*parameters[k : k + 2]), mp.mpc(*parameters[k + 2 : k + 4])
            e = mp.exp(-decay * u)
            value += (weight * e).real
            slope -= (weight * decay * e).real
            by_decay, slope_by_decay = -u * weight * e, weight * e * (u * decay - 1)
            of_value += [e.real, -e.imag, by_decay.real, -by_decay.imag]
            of_slope += [-(decay * e).real, (decay * e).imag]
            of_slope += [slope_by_decay.real, -slope_by_decay.imag]
        errors += [value, SLOPE_WEIGHT * slope]
        jacobian += [of_value, [SLOPE_WEIGHT * x for x in of_slope]]
    return errors, jacobian


def fit(parameters, iterations):
    """Return better parameters; prints the greatest errors as it goes."""
    places = [7 * (1 - mp.cos(mp.pi * k / 180)) for k in range(91)]
    damping = mp.mpf(10) ** -20
    errors, jacobian = residuals(parameters, places)
    for iteration in range(iterations):
        J = mp.matrix(jacobian)
        normal, right = J.T * J, -(J.T * mp.matrix(errors))
        while damping < 1e10:
            damped = normal.copy()
            for i in range(len(parameters)):
                damped[i, i] *= 1 + damping
            step = mp.lu_solve(damped, right)
            trial = [p + d for p, d in zip(parameters, step, strict=True)]
            found, trial_jacobian = residuals(trial, places)
            if mp.norm(found) < mp.norm(errors):
                break
            damping *= 10
        else:
            break
        parameters, errors, jacobian, damping = trial, found, trial_jacobian, damping / 10
        worst = max(map(abs, errors[::2])), max(map(abs, errors[1::2])) / SLOPE_WEIGHT
        print(iteration, *(mp.nstr(x, 3) for x in worst), file=sys.stderr, flush=True)
    return parameters


if __name__ == "__main__":
    mp.mp.dps = 50
    terms, iterations = (int(x) for x in [*sys.argv[1:], *["8", "80"][len(sys.argv) - 1 :]])
    found = fit(starting_values(terms), iterations)
    for k in range(0, len(found), 4):
        print(f"({', '.join(repr(float(x)) for x in found[k : k + 4])}),")
