"""How many tokens to draft: tables, feedback, budgets, costs. Nothing here is jax."""

from jspec.control.adaptive import Adaptive
from jspec.control.base import Controller, Size, Static, Tree, representative
from jspec.control.correction import Corrected, Correction, Overload
from jspec.control.costs import CostTable, Curve, Sample
from jspec.control.estimator import Estimator
from jspec.control.goodput import Goodput
from jspec.control.schedule import Schedule

__all__ = [
    "Adaptive",
    "Controller",
    "Corrected",
    "Correction",
    "CostTable",
    "Curve",
    "Estimator",
    "Goodput",
    "Overload",
    "Sample",
    "Schedule",
    "Size",
    "Static",
    "Tree",
    "representative",
]
