"""Profiles k(u) = exp(-u^p) as short sums of exponentials, which is what a scan can add up.

k(u) = Re sum_m weight_m exp(-decay_m u) for u >= 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy


@dataclass(frozen=True, eq=False)
class Exponentials:
    """One profile.

    Attributes:
        power: p in exp(-u^p).
        reach: Where a single gap between neighbours is wider than this, nothing crosses it: what
            would is below the rounding errors of float64.
        noise: Sums of at most this cannot be told from zero.
        terms: Weight and decay of each term, as pairs of real and imaginary part; one real term,
            or several complex ones.
        weights: The weights of the terms.
        decays: The decays of the terms.
        table: All of these numbers as the native kernel reads them: a row (power, reach, noise, 0),
            then the terms.
    """

    power: float
    reach: float
    noise: float
    terms: tuple[tuple[float, float, float, float], ...]
    weights: list[complex] = field(init=False)
    decays: list[complex] = field(init=False)
    table: numpy.ndarray = field(init=False)

    def __post_init__(self) -> None:
        # Here, not when they are asked for: torch.compile cannot trace `complex`.
        object.__setattr__(self, "weights", [complex(*term[:2]) for term in self.terms])
        object.__setattr__(self, "decays", [complex(*term[2:]) for term in self.terms])
        first = (self.power, self.reach, self.noise, 0.0)
        object.__setattr__(self, "table", numpy.array([first, *self.terms]))

    @property
    def is_real(self) -> bool:
        """Whether all terms are real."""
        return len(self.terms) == 1


LAPLACE = Exponentials(1.0, 708.0, 1e-300, ((1.0, 0.0, 1.0, 0.0),))

# exp(-u^2) is the inverse Laplace transform of sqrt(pi / z) exp(-2 sqrt(z) u) at 1. With exp(z)
# replaced by its best rational approximation on the negative axis (poles z_m, residues c_m, found
# by the Caratheodory-Fejer method), the integral is a sum over the poles: decays 2 sqrt(z_m). These
# starting values were then fitted to exp(-u^2) and its derivative (tools/fit_gaussian.py).
# Greatest error 2.6e-14, of the derivative 8e-13 (tests/kernels/test_scan.py).
GAUSSIAN = Exponentials(
    2.0,
    6.5,
    1e-12,
    (
        (118.73332350276, 305.1669636266567, 5.091699870031771, 0.4692734993772237),
        (-185.36707600603117, -92.47825750354738, 5.0821802841115264, 1.4124753156206216),
        (78.73355901315193, -20.77592453181361, 5.062836544356906, 2.3701943959886465),
        (-11.13771240926129, 15.528444873529343, 5.03295696693213, 3.3541895149290024),
        (-0.04513807610400414, -2.4907787234188117, 4.991199102648938, 4.380349936834746),
        (0.08621076342370076, 0.13311772633755942, 4.935109488775676, 5.473367821428379),
        (-0.003182922356892252, -0.002131706290183479, 4.85975705740414, 6.6793287417129195),
        (1.6134417741160184e-05, 9.210321743836182e-06, 4.752116424367513, 8.11743451655916),
    ),
)

BY_POWER = {profile.power: profile for profile in (LAPLACE, GAUSSIAN)}
