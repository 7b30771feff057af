"""An audit as files: one page for people, ``audit.json`` and ``results.csv`` for programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

import leakgauge
from leakgauge.core.container import Location, output_folder, write_atomically
from leakgauge.core.errors import UnknownName
from leakgauge.evaluation.gate import Check
from leakgauge.evaluation.verdict import Figure, Verdict
from leakgauge.reports import Page, Section, contact_sheet, loss_curves, to_png, write_page
from leakgauge.workflows.audit.run import Audit, Result

Redact = Literal["none", "blur", "omit"]
#: How many samples are shown of each attack, the best recovered ones first.
SHOWN = 16

SENTENCES: dict[Verdict, str] = {
    "recovers data": "Clients' samples can be rebuilt from what they send.",
    "recovers labels or attributes only": (
        "Which labels a client has, or a sensitive column of its records, can be told from what it sends; its samples "
        "did not come back."
    ),
    "nothing above chance": "Does not leak here: nothing came back beyond what guessing gives.",
}


def write_audit(
    audit: Audit, folder: Location, *, command: str = "", redact: Redact = "none", checks: list[Check] | None = None
) -> Path:
    """Write ``audit.html``, ``audit.json`` and ``results.csv``; return the page's path.

    ``redact`` shows clients' samples only as coarse blocks (``"blur"``), or not at all (``"omit"``).
    """
    if redact not in get_args(Redact):
        raise UnknownName("way to redact", redact, get_args(Redact))
    target = output_folder(folder)
    rows = tidy(audit)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["attack"])
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(target / "results.csv", text.getvalue().encode())
    write_atomically(target / "audit.json", json.dumps(to_json(audit, checks or []), indent=1).encode())
    return write_page(_page(audit, command, redact, checks or []), target / "audit.html")


def tidy(audit: Audit) -> list[dict[str, Any]]:
    """One row a client, attack and metric."""
    return [
        {
            "attack": one.work.attack,
            "defence": one.work.title,
            "attacker_knows_defence": one.work.knows,
            "client": one.work.client,
            **row,
            "seconds": round(one.document["seconds"], 3),
        }
        for one in audit.results
        for row in one.document["scores"].values()
    ]


def to_json(audit: Audit, checks: list[Check]) -> dict[str, Any]:
    """The audit in plain values."""
    return {
        "leakgauge": leakgauge.__version__,
        "verdict": audit.overall(),
        "complete": audit.complete,
        "failed": _failures(audit),
        "risk": audit.plan.first_look.risk,
        "findings": [vars(one) for one in audit.plan.first_look.findings],
        "results": [
            {
                "attack": attack,
                "defence": title,
                "attacker_knows_defence": knows,
                "verdict": audit.verdict(group),
                "clients": len(group),
                "figures": {name: vars(figure) for name, figure in audit.figures(group).items()},
            }
            for (attack, title, knows), group in audit.groups().items()
        ],
        "checks": [{"condition": str(one.condition), "failed": one.failed, "words": one.sentence()} for one in checks],
        "settings": _settings(audit),
    }


def _page(audit: Audit, command: str, redact: Redact, checks: list[Check]) -> Page:
    verdict = audit.overall()
    sections = [_by_defence(audit)]
    if failures := _failures(audit):
        named = [f"{name}: {why}" for name, why in failures.items()]
        sections.append(Section("What could not be done", [*named, "Nothing is known of these: they may leak."]))
    if checks:
        sections.append(
            Section("Limits", [("FAILED: " if one.failed else "kept: ") + one.sentence() for one in checks])
        )
    if redact != "omit":
        sections += _pictures(audit, blurred=redact == "blur")
    sections += [
        _table(audit),
        *_curves(audit),
        Section("A first look, before any attack", [f"Risk: {audit.plan.first_look.risk}.", *_first_look(audit)]),
        Section("Threat model", _threat_model(audit)),
        Section("Settings", code=json.dumps(_settings(audit), indent=1)),
        Section("How to run it again", code=command or "leakgauge audit audit.toml"),
    ]
    state = "" if audit.complete else " The audit is not complete: run it again to go on where it ended."
    words = f"{SENTENCES[verdict]} {_where(audit)}{_tried(audit)}{state}"
    return Page("Leakgauge audit", words, verdict == "recovers data", tuple(sections))


def _failures(audit: Audit) -> dict[str, str]:
    return {} if audit.failed is None else audit.failed.failures


def _where(audit: Audit) -> str:
    """Which defences end in the overall verdict and which do not, where they differ."""
    return "" if len({audit.overall(title) for title in audit.tried}) < 2 else f"By defence: {by_defence(audit)}. "


def by_defence(audit: Audit) -> str:
    """The verdict on each defence, in a line."""
    return "; ".join(f"{title}: {audit.overall(title)}" for title in audit.tried)


def _tried(audit: Audit) -> str:
    plan = audit.plan
    return (
        f"Tried: {', '.join(plan.attacks)} on {plan.clients} client{'s' if plan.clients > 1 else ''} with "
        f"{plan.scenario.samples} sample{'s' if plan.scenario.samples > 1 else ''} each."
    )


def _by_defence(audit: Audit) -> Section:
    """For each defence the verdict, and the attack that came nearest to the samples."""
    rows = [["defence", "verdict", "strongest attack", "PSNR, dB", "chance"]]
    for title in audit.tried:
        groups = {key: audit.figures(group) for key, group in audit.groups().items() if key[1] == title}
        shown = {key: figures["psnr"] for key, figures in groups.items() if "psnr" in figures}
        row = [title, audit.overall(title), "-", "-", "-"]
        if shown:
            (attack, _, knows), best = max(shown.items(), key=lambda item: item[1].mean)
            row[2:] = [attack + (", knows the defence" if knows else ""), f"{best.mean:.1f}", f"{best.chance:.1f}"]
        rows.append(row)
    return Section("Verdict by defence", table=rows)


def _table(audit: Audit) -> Section:
    names = [
        name
        for name in ("psnr", "ssim", "recovered", "features", "mse", "label_errors", "attribute_accuracy")
        if _has(audit, name)
    ]
    head = ["attack", "defence", "attacker", "verdict", *names, "clients", "seconds"]
    rows = []
    for (attack, title, knows), group in audit.groups().items():
        figures = audit.figures(group)
        cells = [_cell(figures[name]) if name in figures else "-" for name in names]
        seconds = sum(one.document["seconds"] for one in group)
        who = "knows the defence" if knows else "-"
        rows.append([attack, title, who, audit.verdict(group), *cells, str(len(group)), f"{seconds:.1f}"])
    words = "Means over clients with their 95% intervals, beside what guessing without the message gives (chance)."
    return Section("Every attack", (words,), table=[head, *rows])


def _has(audit: Audit, name: str) -> bool:
    return any(name in one.document["scores"] for one in audit.results)


def _cell(figure: Figure) -> str:
    spread = "" if figure.low is None or figure.high is None else f" ({figure.low:.3g} to {figure.high:.3g})"
    return f"{figure.mean:.3g}{spread}, chance {figure.chance:.3g}"


def _pictures(audit: Audit, *, blurred: bool) -> list[Section]:
    """For each defence the strongest attack: originals over reconstructions over a guess, the worst cases first."""
    sections = []
    for title in audit.plan.chains:
        groups = {key: group for key, group in audit.groups().items() if key[1] == title}
        shown = {key: group for key, group in groups.items() if "psnr" in group[0].tensors}
        if not shown:
            continue
        (attack, _, knows), group = max(shown.items(), key=lambda item: _mean_psnr(item[1]))
        original, rebuilt, psnr, ssim = (_joined(group, name) for name in ("original", "reconstructed", "psnr", "ssim"))
        if original.shape[1] not in (1, 3):
            continue
        order = psnr.argsort(descending=True)[:SHOWN]
        rows = {"original": original[order], "rebuilt": rebuilt[order]}
        if "guess" in group[0].tensors:
            rows["guess"] = group[0].tensors["guess"].expand(len(order), *original.shape[1:])
        if blurred:
            rows = {name: _blur(images) for name, images in rows.items()}
        both = len(ssim) == len(psnr)
        captions = {
            "rebuilt": [f"{psnr[row]:.1f} dB" + (f", {ssim[row]:.2f}" if both else "") for row in order.tolist()]
        }
        who = ", by an attacker who knows the defence" if knows else ""
        sections.append(
            Section(
                f"What came back: {title}",
                (
                    f"The {len(order)} best recovered samples of {attack}{who}"
                    f"{', shown as coarse blocks' if blurred else ''}, with their PSNR{' and SSIM' if both else ''}.",
                ),
                picture=to_png(contact_sheet(rows, captions)),
                alt=f"originals, reconstructions by {attack} and a guess, {title}",
            )
        )
    return sections


def _mean_psnr(group: list[Result]) -> float:
    return float(_joined(group, "psnr").mean())


def _joined(group: list[Result], name: str) -> Tensor:
    found = [one.tensors[name] for one in group if name in one.tensors]
    return torch.cat(found) if found else torch.zeros(0)


def _blur(images: Tensor) -> Tensor:
    """Four by four blocks: enough to see that something came back, too coarse to see what."""
    coarse = F.adaptive_avg_pool2d(images, 4)
    return F.interpolate(coarse, size=images.shape[-2:], mode="nearest")


def _curves(audit: Audit) -> list[Section]:
    curves = {}
    for (attack, title, knows), group in audit.groups().items():
        losses = group[0].tensors.get("losses")
        if losses is not None and not knows and bool((losses > 0).any()) and title == next(iter(audit.plan.chains)):
            curves[attack] = losses
    if not curves:
        return []
    picture = to_png(loss_curves(curves, title="the attacker's own loss, first client"))
    return [Section("Course of the attacks", picture=picture, alt="losses over the steps of each attack")]


def _first_look(audit: Audit) -> list[str]:
    look = audit.plan.first_look
    refused = [f"{name} does not apply: {reason}." for name, reason in look.refused.items()]
    return [*(one.sentence for one in look.findings), *refused]


def _threat_model(audit: Audit) -> list[str]:
    """What the attackers have, each sentence once."""
    return list(dict.fromkeys(line for one in audit.results for line in one.document["threat_model"]))


def _settings(audit: Audit) -> dict[str, Any]:
    plan = audit.plan
    return {
        **plan.scenario.document,
        "attacks": {name: one.options for name, one in plan.attacks.items()},
        "defences": {title: list(map(repr, chain)) for title, chain in plan.chains.items()},
        "clients": plan.clients, "threshold": plan.threshold,
        "leakgauge": leakgauge.__version__, "torch": torch.__version__,
    }  # fmt: skip
