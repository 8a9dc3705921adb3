"""The planner: hardware and a request's sizes -> the plan that is taken.

The fastest candidate that fits wins, and of equally fast ones the one that keeps least in host memory: what is resident
can never be waited for. A budget that nothing fits is refused with the smallest that would do and the longest clip
that fits the one given.
"""

from __future__ import annotations

from talkies.capacity.demand import Demand
from talkies.capacity.hardware import Hardware
from talkies.capacity.plan import Plan, Wishes
from talkies.capacity.price import Pricing
from talkies.capacity.refusal import refusal
from talkies.capacity.sizes import Sizes

SAME_SPEED = 1.002  # two plans that differ by less are equally fast


def make_plan(sizes: Sizes, demand: Demand, hardware: Hardware, wishes: Wishes | None = None) -> Plan:
    """The fastest plan that fits; raises ``ConfigError`` naming the smallest budget and the nearest size that fit."""
    wishes = wishes or Wishes()
    best: Plan | None = None
    plans = Pricing(sizes, demand, hardware, wishes).all()
    for plan in plans:
        if plan.fits(hardware) and (best is None or _better(plan, best)):
            best = plan
    if best is None:
        raise refusal(sizes, demand, hardware, wishes, plans)
    return best


def _better(plan: Plan, best: Plan) -> bool:
    if plan.total_s * SAME_SPEED < best.total_s:
        return True
    if plan.total_s > best.total_s * SAME_SPEED:
        return False
    return (plan.host_bytes, plan.peak_bytes) < (best.host_bytes, best.peak_bytes)
