"""Comparisons that decide whether the peers did the same work."""

import math

from spec import Check, Results


def _worst(values, expected):
    return max((abs(a - b) for a, b in zip(values, expected)), default=0.0)


def losses_agree(results: Results, reference: str, step_tolerance=1e-5, final_tolerance=1e-2) -> list[Check]:
    """The first losses of every process lie within `step_tolerance` of those of `reference`, the final loss within the
    part `final_tolerance` of its own."""
    expected = results.reports[reference][0]["losses"]
    checks = []
    for peer, reports in results.reports.items():
        first = max(_worst(r["losses"]["first"], expected["first"]) for r in reports)
        final = max(abs(r["losses"]["final"] / expected["final"] - 1) for r in reports)
        complete = all(len(r["losses"]["first"]) == len(expected["first"]) for r in reports)
        good = complete and first <= step_tolerance and final <= final_tolerance
        detail = (
            f"first {len(expected['first'])} losses differ by {first:.1e} at most (limit {step_tolerance:g}), "
            f"the final one by {100 * final:.3f} % (limit {100 * final_tolerance:g} %)"
        )
        checks.append(Check(f"losses of {peer}", good, detail))
    return checks


def values_agree(results: Results, reference: str, key: str, tolerance: float) -> list[Check]:
    """What every report has under `key`, lists of numbers by case, equals that of `reference` to the part `tolerance`."""
    expected, by_row = {}, {}
    for peer in results.benchmark.peers:
        for report in results.reports[peer.name]:
            by_row.setdefault(peer.row, []).append(report[key])
            if peer.row == reference:
                expected |= report[key]
    checks = []
    for row, found in by_row.items():
        worst = 0.0
        for case, values in ((case, values) for cases in found for case, values in cases.items()):
            if len(values) != len(expected[case]):
                worst = math.inf
            for a, b in zip(values, expected[case]):
                worst = max(worst, abs(a - b) / max(abs(b), 1e-3))
        checks.append(
            Check(f"{key} of {row}", worst <= tolerance, f"differ by {worst:.1e} at most (limit {tolerance:g})")
        )
    return checks
