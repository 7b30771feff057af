"""The long form of the known answers: full default audits, one after the other, and a page about them.

Run ``make gauntlet``, or ``python -m tests.known_answers.gauntlet --help`` in the top folder. Finished attacks are in
the cache, so an interrupted run continues where it stopped.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.known_answers.held_out import HELD_OUT
from tests.known_answers.known_answer import KnownAnswer
from tests.known_answers.runner import Outcome, run
from tests.known_answers.table import TABLE


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Audit the set-ups with known answers, and write a page about them.")
    parser.add_argument("--output", type=Path, default=Path("gauntlet"), help="the folder of the page and the cache")
    parser.add_argument("--jobs", type=int, default=2, help="the number of attacks that run at a time")
    parser.add_argument("--clients", type=int, help="the number of clients of each set-up (default: 4)")
    parser.add_argument("--short", action="store_true", help="the few attacks of the short form, as in CI")
    parser.add_argument("--held-out", action="store_true", help="the held-out set-ups instead of the table")
    parser.add_argument("--only", nargs="*", default=[""], help="only rows whose names contain one of these texts")
    parser.add_argument("--ready", action="store_true", help="leave out rows that need attacks still to be built")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[KnownAnswer]:
    """Return the rows that the options choose."""
    rows = HELD_OUT if options.held_out else TABLE
    return [
        row
        for row in rows
        if any(text in row.name for text in options.only)
        and not (options.short and row.short is None)
        and not (options.ready and row.needs)
    ]


def page(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown page with one line for each set-up."""
    counts = Counter(outcome.status for outcome in outcomes)
    total = sum(outcome.seconds for outcome in outcomes)
    lines = [
        "# Known answers",
        "",
        f"{len(outcomes)} set-ups: " + ", ".join(f"{count} {status}" for status, count in counts.items()) + ". "
        f"{total:.0f} CPU seconds.",
        "",
        "| set-up | right verdicts | verdict | status | CPU s | why it is known | figures |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        answer = outcome.answer
        right = " or ".join(sorted(map(str, answer.right)))
        needs = f" (needs: {answer.needs})" if answer.needs else ""
        figures = "; ".join([*outcome.failures, outcome.reason]).replace("|", "/").replace("\n", " ")
        lines.append(
            f"| {answer.name}{needs} | {right} | {outcome.verdict or 'none'} | {outcome.status} | "
            f"{outcome.seconds:.1f} | {answer.why} | {figures} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the chosen rows, and return the exit code: 1 if a verdict is wrong, 130 if the run was interrupted."""
    try:
        outcomes = run_all(arguments())
    except KeyboardInterrupt:
        print("Interrupted. Finished attacks are in the cache, and the same command continues.")
        return 130
    return int(any(outcome.status in ("false safe", "false leak", "failed") for outcome in outcomes))


def run_all(options: argparse.Namespace) -> list[Outcome]:
    """Run the chosen rows, print one line for each, and write the page after each row."""
    options.output.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for row in chosen(options):
        outcome = run(row, options.output / "cache", short=options.short, clients=options.clients, jobs=options.jobs)
        outcomes.append(outcome)
        needs = f" (needs: {row.needs})" if row.needs else ""
        verdict = outcome.verdict or "none"
        print(f"{outcome.status:12} {outcome.seconds:7.1f} s  {row.name}{needs}: {verdict}", flush=True)
        if outcome.status != "right":
            print(f"             {'; '.join([*outcome.failures, outcome.reason])}", flush=True)
        name = "held-out.md" if options.held_out else "known-answers.md"
        (options.output / name).write_text(page(outcomes))
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
