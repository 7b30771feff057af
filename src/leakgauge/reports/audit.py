"""The report of an audit, which consists of an HTML page, a JSON file and a CSV file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import leakgauge
from leakgauge.core.container import Location, output_folder
from leakgauge.evaluation.verdict import Finding, Verdict, together
from leakgauge.reports.curves import loss_curves
from leakgauge.reports.findings import (
    cell,
    controls_section,
    document,
    main_metric,
    metrics_in,
    plain_finding,
    shared_sections,
    strongest,
    write_csv,
    write_json,
)
from leakgauge.reports.meaning import meaning
from leakgauge.reports.page import Page, Section, write_page
from leakgauge.reports.pictures import contact_sheet, to_png
from leakgauge.reports.rebuilt_rows import Rebuilt
from leakgauge.reports.series import has_lines, series_section
from leakgauge.runtime.display import duration

if TYPE_CHECKING:
    from leakgauge.workflows.audit.judging import ClientResult
    from leakgauge.workflows.audit.run import Audit

#: The number of samples that are shown for each defence, the best recovered first.
SHOWN = 16
#: What the figures of the most important metrics mean.
METRIC_IN_WORDS = {
    "psnr": "PSNR is the similarity of a rebuilt sample and the original in dB. From about 20 dB on, people usually "
    "recognise a picture. From about 60 dB on, it is an exact copy.",
    "features": "“features” is the share of the values of a record that came back.",
    "attribute_accuracy": "“attribute_accuracy” is the share of records whose sensitive value was inferred.",
}
CHANCE_IN_WORDS = "Chance is what a guess reaches without the client's message. Near chance, this attack found nothing."
#: The name of the version of a set-up without a defence.
UNDEFENDED = "no defence"
NOT_STORED = "The samples were not stored, because of --redact omit. To see them, run the audit with another --output."


def write_audit(audit: Audit, folder: Location, *, command: str = "", redact: str = "none") -> Path:
    """Write the files ``audit.html``, ``audit.json`` and ``results.csv``, and return the path of the HTML page.

    Args:
        audit: The result of the audit.
        folder: The folder for the files.
        command: The command line of the audit, which the page shows.
        redact: ``"none"`` shows clients' samples on the page, and ``"omit"`` leaves them out.
    """
    target = output_folder(folder)
    write_csv(client_rows(audit), target / "results.csv")
    look = audit.plan.first_look
    first_look = {"risk": look.risk, "reasons": [vars(reason) for reason in look.reasons]}
    controls = [plain_finding(finding) for finding in audit.controls]
    ladder = [plain_finding(finding) for finding in audit.ladder]
    more = {"controls": controls, "ladder": ladder, "first_look": first_look, "settings": _settings(audit)}
    more["self_test"] = audit.plan.self_tested
    if audit.lying is not None:
        more["malicious_server"] = audit.lying.document
    write_json({**document(audit), **more}, target / "audit.json")
    return write_page(_page(audit, command, redact), target / "audit.html")


def client_rows(audit: Audit) -> list[dict[str, Any]]:
    """Return the rows of ``results.csv``, one for each attacked client, attack, defence and metric."""
    return [
        {
            "attack": result.work.attack,
            "defence": result.work.defence,
            "knows_defence": result.work.knows_defence,
            "client": result.work.client,
            **row,
            "seconds": round(result.document["seconds"], 3),
        }
        for result in audit.results
        for row in result.document["scores"].values()
    ]


def _page(audit: Audit, command: str, redact: str) -> Page:
    look = audit.plan.first_look
    refused = [f"{name} does not apply: {reason}." for name, reason in look.refused.items()]
    state = audit.plan.scenario.model_state
    reasons = [f"Risk: {look.risk}.", state, *(reason.sentence for reason in look.reasons), *refused]
    reasons += [audit.plan.self_tested] if audit.plan.self_tested else []
    threats = dict.fromkeys(line for result in audit.results for line in result.document["threat_model"])
    sections = [
        meaning(audit),
        _by_defence(audit),
        *shared_sections(audit),
        *([] if redact == "omit" else _pictures(audit)),
        *controls_section(audit.controls),
        *_ladder(audit),
        *_lying(audit),
        *_bounds(audit),
        _every_attack(audit),
        *_diagnoses(audit),
        *_curves(audit),
        Section("A first look, before any attack", reasons),
        *_cost(audit),
        *_notes(audit),
        Section("Threat model", list(threats)),
        Section("Settings", code=json.dumps(_settings(audit), indent=1)),
        Section("How to run it again", code=command or "leakgauge audit audit.toml"),
    ]
    return Page("Leakgauge audit", audit.verdict, _summary(audit), tuple(sections))


def _summary(audit: Audit) -> str:
    plan = audit.plan
    verdicts = {audit.verdict_on(title) for title in audit.tried}
    where = f" By defence: {by_defence(audit)}." if len(verdicts) > 1 else ""
    tried = (
        f" Tried: {', '.join(plan.attacks)} on {plan.clients} client{'s' if plan.clients > 1 else ''} with "
        f"{plan.scenario.samples} sample{'s' if plan.scenario.samples > 1 else ''} each."
    )
    state = "" if audit.complete else " The audit is not complete. Run it again to continue."
    return f"{audit.verdict.sentence}{where}{tried}{state}"


def by_defence(audit: Audit) -> str:
    """Return one line of text with the verdict on each defence."""
    return "; ".join(f"{title}: {audit.verdict_on(title)}" for title in audit.tried)


def _notes(audit: Audit) -> list[Section]:
    """Return a section about how the data was read, such as the types of a table's columns."""
    notes = audit.plan.scenario.dataset.notes
    return [Section("How the data was read", notes)] if notes else []


def _findings_on(audit: Audit, title: str) -> list[Finding]:
    return [finding for finding in audit.findings if finding.setup == title]


def _by_defence(audit: Audit) -> Section:
    """Return a section with a table of defences. It shows the verdict and the strongest attack on each defence.

    If every client of the audit has a defence, the first line of the table is the set-up without a defence.
    """
    rows = [["defence", "verdict", "strongest attack", "metric", "value", "chance"]]
    baseline = [finding for finding in audit.controls if finding.setup == UNDEFENDED]
    if baseline:
        rows.append([f"{UNDEFENDED} (for comparison)", str(together(baseline)), *_strongest(baseline)])
    rows += [[title, str(audit.verdict_on(title)), *_strongest(_findings_on(audit, title))] for title in audit.tried]
    used = {row[3] for row in rows[1:]}
    words = [sentence for metric, sentence in METRIC_IN_WORDS.items() if metric in used]
    return Section("Verdict by defence", [*words, CHANCE_IN_WORDS], table=rows)


def _strongest(findings: Sequence[Finding]) -> list[str]:
    best = strongest(findings)
    if best is None:
        return ["-"] * 4
    metric = main_metric(best) or ""
    measure = best.measures[metric]
    attack = best.attack + (", knows the defence" if best.knows_defence else "")
    return [attack, metric, f"{measure.value:.3g}", "-" if measure.chance is None else f"{measure.chance:.3g}"]


def _every_attack(audit: Audit) -> Section:
    metrics = metrics_in(audit.findings)
    rows = [["attack", "defence", "attacker", "verdict", *metrics, "clients", "seconds"]]
    for finding in audit.findings:
        results = audit.results_of(finding)
        seconds = sum(result.document["seconds"] for result in results)
        attacker = "knows the defence" if finding.knows_defence else "-"
        cells = [cell(finding.measures.get(name)) for name in metrics]
        verdict = str(finding.verdict)
        rows.append([finding.attack, finding.setup, attacker, verdict, *cells, str(len(results)), f"{seconds:.1f}"])
    words = ["Means over clients with their 95% intervals. Chance is what a guess without the message reaches."]
    by_reason: dict[str, list[str]] = {}
    for one in audit.findings:
        if one.reason:
            by_reason.setdefault(one.reason, []).append(f"{one.attack} ({one.title})")
    words += [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    words += [f"{name} was not run on {count}." for name, count in _left_out(audit).items()]
    return Section("Every attack", words, table=rows)


def _diagnoses(audit: Audit) -> list[Section]:
    """Return a section about the likely causes of failed attacks.

    The causes are derived from what the attacker sees.
    """
    rows = [["attack", "defence", "likely causes, and what to try"]]
    for finding in audit.findings:
        if finding.verdict is not Verdict.RECOVERS_DATA:
            results = audit.results_of(finding)
            causes = [cause for one in results for cause in one.document.get("diagnosis", ())]
            kinds = {re.sub(r"[\d.,]+", "", cause): cause for cause in reversed(causes)}  # clients differ in figures
            if kinds:
                rows.append([finding.attack, finding.title, " ".join(reversed(kinds.values()))])
    if len(rows) == 1:
        return []
    words = "These are hints from what the attacker sees. An attack that failed for such a cause shows no safety."
    return [Section("Why attacks found nothing", (words,), table=rows)]


def _left_out(audit: Audit) -> dict[str, str]:
    """Return, for each attack, a text with the number of clients that were not attacked.

    A client is left out if an exact attack has already recovered all samples of the client.
    """
    done = Counter(result.work.attack for result in audit.results)
    planned = Counter(work.attack for work in audit.plan.work)
    if not audit.complete:
        return {}
    return {
        name: f"{planned[name] - done[name]} of {planned[name]} messages, because an exact attack had every sample"
        for name in planned
        if done[name] < planned[name]
    }


def _ladder(audit: Audit) -> list[Section]:
    """Return a section about the strongest attack on versions of the set-up with more samples, local steps or noise."""
    if not audit.ladder:
        return []
    rows = [["version of this set-up", "result", "what came back"]]
    for finding in audit.ladder:
        metric = main_metric(finding) or ""
        rows.append([finding.setup, f"{metric} {cell(finding.measures[metric])}", _came_back(finding)])
    words = [
        f"{audit.ladder[0].attack} on one client of each version of this set-up, without a defence unless noise is "
        'named. Each version changes one thing. "Not found" is about this attack only, and is no all-clear, because no '
        "positive control was run on these versions.",
        *audit.ladder_sentences,
    ]
    return [Section("How far the strongest attack gets", words, table=rows)]


def _came_back(finding: Finding) -> str:
    """Return in words what an attack found on a version of the set-up, without a verdict on the version."""
    words = {Verdict.RECOVERS_DATA: "data", Verdict.RECOVERS_ATTRIBUTES: "labels or attributes only"}
    return words.get(finding.verdict, "not found")


def _lying(audit: Audit) -> list[Section]:
    """Return a section about a malicious server, which plants traps in the model that it sends."""
    if audit.lying is None:
        return []
    words = [
        audit.lying.sentence,
        *(lie.sentence for lie in audit.lying.lies),
        "This is no part of the verdict, which is about a server that keeps to the protocol. Clipping with noise stops "
        "these attacks. leakgauge check-model and a comparison of digests among clients show them to a client.",
    ]
    return [Section("If the server lies", words)]


def _bounds(audit: Audit) -> list[Section]:
    """Return a section about upper limits that hold for every attack, if such limits are proven for a defence."""
    if not audit.plan.bounds:
        return []
    rows = [["defence", "success without the message", "success with the message, at most", "epsilon"]]
    sentences: dict[str, None] = {}
    for title, bound in audit.plan.bounds.items():
        epsilon = "-" if bound.epsilon is None else f"{bound.epsilon:.3g}"
        rows += [[title, f"{prior:g}", f"{success:.3g}", epsilon] for prior, success in bound.ladder]
        sentences |= dict.fromkeys((f"{title}: {bound.sentence}", *bound.assumptions))
    return [Section("What no attack can exceed", list(sentences), table=rows)]


def _cost(audit: Audit) -> list[Section]:
    """Return a section about the budget and the time that was expected before the attacks ran."""
    if audit.forecast is None or not any(audit.forecast.seconds.values()):
        return []
    words = [
        audit.forecast.sentence(audit.plan.work, audit.plan.exact_work, audit.plan.possible_controls),
        f"All attacks together took {duration(audit.seconds)} of one core, with positive controls and the ladder.",
    ]
    late = Counter(result.work.attack for result in audit.results if result.cut_short)
    words += [f"{name} was cut short on {count} of its messages." for name, count in late.items()]
    return [Section("Time", words)]


def _pictures(audit: Audit) -> list[Section]:
    """Return one section for each defence, with samples as pictures, series or rows of a table.

    They show original samples, their reconstructions by the strongest attack, and a guess without the update. Results
    of an earlier run with ``--redact omit`` have no samples.
    """
    sections = []
    for title in audit.tried:
        shown = [
            (finding, audit.results_of(finding), metric)
            for finding in _findings_on(audit, title)
            for metric in ("psnr", "features")
            if metric in audit.results_of(finding)[0].tensors
        ]
        if not shown:
            continue
        finding, results, _ = max(shown, key=lambda item: float(_joined(item[1], item[2]).mean()))
        stored = [result for result in results if "original" in result.tensors]
        if not stored:
            sections.append(Section(f"What came back: {title}", (NOT_STORED,)))
        elif has_lines(audit.plan.scenario.dataset.spec):
            sections.append(_series(audit, finding, stored))
        elif _joined(stored, "original").dim() == 2:
            sections.append(_records(audit, finding, stored))
        elif audit.plan.scenario.dataset.spec.is_image and _joined(stored, "original").shape[1] in (1, 3):
            sections.append(_picture(finding, stored))
    return sections


def _records(audit: Audit, finding: Finding, results: Sequence[ClientResult]) -> Section:
    dataset = audit.plan.scenario.dataset
    parts = {name: _joined(results, name) for name in ("original", "reconstructed", "targets", "labels")}
    count = len(parts["original"])
    rebuilt = Rebuilt(
        dataset.spec,
        parts["reconstructed"],
        parts["original"],
        results[0].tensors.get("guess"),
        parts["targets"] if len(parts["targets"]) == count else None,
        parts["labels"] if len(parts["labels"]) == count else None,
        dataset.target,
        dataset.words,
        float(dataset.targets.double().std(correction=0)),
    )
    attacker = ", by an attacker who knows the defence" if finding.knows_defence else ""
    words = f"The best recovered rows of {finding.attack}{attacker}."
    proven = sum(bool(result.document.get("proven")) for result in results)
    if proven:
        words += f" For {proven} of {len(results)} clients, the attack shows without the true rows that it is exact."
    return rebuilt.section(f"What came back: {finding.setup}", words)


def _series(audit: Audit, finding: Finding, results: Sequence[ClientResult]) -> Section:
    names = ("original", "reconstructed", "features")
    original, reconstructed, right = (_joined(results, name) for name in names)
    rows = {"original": original, "rebuilt": reconstructed}
    if "guess" in results[0].tensors:
        rows["guess"] = results[0].tensors["guess"].expand_as(original)
    attacker = ", by an attacker who knows the defence" if finding.knows_defence else ""
    words = f"The best recovered series of {finding.attack}{attacker}."
    return series_section(f"What came back: {finding.setup}", words, audit.plan.scenario.dataset.spec, rows, right)


def _picture(finding: Finding, results: Sequence[ClientResult]) -> Section:
    names = ("original", "reconstructed", "psnr", "ssim")
    original, reconstructed, psnr, ssim = (_joined(results, name) for name in names)
    order = psnr.argsort(descending=True)[:SHOWN]
    rows = {"original": original[order], "rebuilt": reconstructed[order]}
    if "guess" in results[0].tensors:
        rows["guess"] = results[0].tensors["guess"].expand(len(order), *original.shape[1:])
    both = len(ssim) == len(psnr)
    captions = [f"{psnr[row]:.1f} dB" + (f", {ssim[row]:.2f}" if both else "") for row in order.tolist()]
    attacker = ", by an attacker who knows the defence" if finding.knows_defence else ""
    figures = "PSNR and SSIM" if both else "PSNR"
    return Section(
        f"What came back: {finding.setup}",
        (f"The {len(order)} best recovered samples of {finding.attack}{attacker}, with their {figures}.",),
        picture=to_png(contact_sheet(rows, {"rebuilt": captions})),
        shows_samples=True,
        alt=f"originals, reconstructions by {finding.attack} and a guess, {finding.setup}",
    )


def _joined(results: Sequence[ClientResult], name: str) -> Tensor:
    parts = [result.tensors[name] for result in results if name in result.tensors]
    return torch.cat(parts) if parts else torch.zeros(0)


def _curves(audit: Audit) -> list[Section]:
    """Return a section with the loss curves of the attacks on the first client.

    The client uses the first entry in the audit's list of defences. This entry may mean that there is no defence. The
    attackers do not know the defence.
    """
    first = next(iter(audit.plan.chains))
    curves = {}
    for finding in _findings_on(audit, first):
        losses = audit.results_of(finding)[0].tensors.get("losses")
        if losses is not None and not finding.knows_defence and bool((losses > 0).any()):
            curves[finding.attack] = losses
    if not curves:
        return []
    picture = to_png(loss_curves(curves, title="the attacker's own loss, first client"))
    return [Section("Course of the attacks", picture=picture, alt="losses over the steps of each attack")]


def _settings(audit: Audit) -> dict[str, Any]:
    plan = audit.plan
    return {
        **plan.scenario.document,
        "attacks": {name: dict(attacker.options) for name, attacker in plan.attacks.items()},
        "defences": {title: list(map(repr, chain)) for title, chain in plan.chains.items()},
        "clients": plan.clients,
        "threshold": plan.threshold,
        "leakgauge": leakgauge.__version__,
        "torch": torch.__version__,
    }
