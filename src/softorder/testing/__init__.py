"""Examine a relaxation of your own: does it keep the contract of softorder?

`check_relaxation` puts a relaxation through the laws of the table `LAWS`, in that order. A law is a
short function that states itself in one sentence and examines one operation: read the laws
(`softorder.testing.laws`) to learn the contract. Values are examined in NumPy, and derivatives in
torch where it is installed.
"""

from softorder.testing._check import check_relaxation
from softorder.testing._report import Report
from softorder.testing.laws import LAWS as LAWS
from softorder.testing.laws import LawBroken

__all__ = ["LawBroken", "Report", "check_relaxation"]
