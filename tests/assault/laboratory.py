"""A process in which captures are loaded and attacked, and which may crash, hang or fill its memory.

The process prints the name of each case before it begins, and what became of it afterwards. If it dies, the case that
has begun last is to blame, and another process continues with the next one.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

#: The memory that attacks find available, in bytes, and the most that the process may take beyond its start.
AVAILABLE, MOST = 2**28, 3 * 2**30
#: The seconds of processor time after which a case counts as hanging. A case that waits may take four times as long.
PATIENCE = 60


@dataclass
class Result:
    """What became of one case.

    Args:
        kind: ``refused``, ``attacked``, or a failure: ``unexpected``, ``hang``, ``crash``, ``nonsense`` or ``memory``.
        text: The sentence of the refusal, or a description of the failure.
        peak: The most memory of the process during the case, beyond its start, in MiB.
        seconds: The processor time that the case took.
    """

    kind: str
    text: str = ""
    peak: float = 0.0
    seconds: float = 0.0


@dataclass
class Report:
    """The results of all cases."""

    results: dict[str, Result] = field(default_factory=dict)

    @property
    def counts(self):
        return Counter(result.kind for result in self.results.values())

    @property
    def failures(self):
        return {name: one for name, one in self.results.items() if one.kind not in ("refused", "attacked")}

    @property
    def peak(self):
        return max((result.peak for result in self.results.values()), default=0.0)

    def __str__(self):
        kinds = ("refused", "attacked", "crash", "hang", "unexpected", "nonsense", "memory")
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in kinds)
        return f"{len(self.results)} cases: {counts}; most memory {self.peak:.0f} MiB beyond the start"


def examine(job, names, patience=PATIENCE):
    """Run the cases with the given names in processes of their own, and return a report.

    Args:
        job: A dictionary that :func:`cases` understands. Its list ``few`` names cases that meet three attacks, in turn.
            Mutated captures, whose names are numbers, do so too. All others meet every attack.
        names: The names of the cases, in their order.
        patience: The seconds of processor time after which a single case counts as hanging.
    """
    report, left = Report(), list(names)
    while left:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            text = json.dumps({**job, "names": left, "patience": patience})
            command = [sys.executable, "-m", "tests.assault.laboratory"]
            variables = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command, input=text, stdout=output, stderr=errors, text=True, check=False, env=variables,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
            output.seek(0)
            errors.seek(0)
            lines, problem = [json.loads(line) for line in output if line.startswith("{")], errors.read()
        begun = None
        for line in lines:
            begun = line["name"]
            if "kind" in line:
                report.results[begun] = Result(line["kind"], line["text"], line["peak"], line["seconds"])
        if done.returncode == 0:
            break
        assert begun is not None, problem
        if begun not in report.results:
            kind = "hang" if "Timeout" in problem else "crash"
            report.results[begun] = Result(kind, f"exit code {done.returncode}: {problem[-800:]}")
        left = left[left.index(begun) + 1 :]
    return report


def cases(job):
    """Yield the name and the path of each case, and the capture from which it was made or ``None``."""
    from tests.assault.mutators import MUTATORS

    if "files" in job:
        for name in job["names"]:
            yield name, Path(job["files"][name]), None
        return
    bases = [Path(base) for base in job["bases"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        for name in job["names"]:
            base = bases[int(name) % len(bases)]
            path.write_bytes(MUTATORS[job["mutator"]](base.read_bytes(), int(name)))
            yield name, path, base if job["mutator"] == "bytes" else None


def attacks_for(number):
    """Return the attacks on one case. With a number, the case meets three of them, in turn."""
    from leakgauge import attacks

    every = [
        attacks.inverting_gradients(steps=2), attacks.dlf(steps=2, warm_steps=2), attacks.agic(steps=2),
        attacks.idlg(steps=1), attacks.prior_path(steps=4), attacks.lbfgs_simulation(steps=1, pool=1),
        attacks.awa(steps=2), attacks.dense_read_off(), attacks.build("two_spans"), attacks.build("surrogate", steps=2),
        attacks.build("dense_factorisation"),
    ]  # fmt: skip
    if number is None:
        return every
    return [every[(number + step) % len(every)] for step in (0, 4, 7)]


def tried(path, base, number):
    """Load a capture and attack it. Return what became of it."""
    import torch

    import leakgauge as lg
    from leakgauge.attacks import local_model
    from leakgauge.core.errors import LeakgaugeError

    try:
        observation = lg.load(path)
    except LeakgaugeError as problem:
        sentence = str(problem)
        if str(path) not in sentence or len(sentence) > 2500 or not sentence.strip():
            return "nonsense", f"no sentence about the file: {sentence[:300]}"
        return "refused", sentence
    if base is not None and not _alike(observation, lg.load(base)):
        return "nonsense", "a changed file was loaded as if it were intact"
    said = [observation.threat_model() and ""]
    for attack in attacks_for(number):
        try:
            found = attack(observation, progress=False)
        except LeakgaugeError as problem:
            said.append(str(problem))
            continue
        known = observation.training.samples
        finite = bool(torch.isfinite(found.samples).all())
        if found.outcome.kind == "converged" and not (finite and known in (None, len(found.samples))):
            return "nonsense", f"{attack!r}: {found.outcome} with {tuple(found.samples.shape)}"
        labels, classes = found.labels, observation.data.classes
        counted = labels is not None and classes is not None and len(labels) > 0
        if counted and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            return "nonsense", f"{attack!r}: labels beyond the classes"
    for method in ("last_returned", "secant"):
        try:
            local_model.build(method)([observation], progress=False)
        except LeakgaugeError as problem:
            said.append(str(problem))
    if any(len(sentence) > 2500 for sentence in said):
        return "nonsense", "a sentence of more than 2,500 characters"
    return "attacked", " | ".join(filter(None, said))[:2000]


def _alike(observation, original):
    import torch

    facts = ("client", "round", "training", "data", "defences")
    same = all(getattr(observation, name) == getattr(original, name) for name in facts)
    return same and all(torch.equal(observation.sent[name], value) for name, value in original.sent.items())


class Hang(BaseException):
    """A case that does not end."""


def main():
    import resource
    import traceback
    import warnings

    import torch

    import leakgauge.attacks
    from leakgauge.runtime import memory

    assert leakgauge.attacks.ATTACKS
    job = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))
    memory.available = lambda: AVAILABLE

    def give_up(*_):
        raise Hang

    signal.signal(signal.SIGPROF, give_up)
    memory.reset_peak()
    start = memory.peak()
    numbers = {name: number for number, name in enumerate(job.get("few", []))}
    for name, path, base in cases(job):
        print(json.dumps({"name": name}), flush=True)
        memory.reset_peak()
        began = time.process_time()
        faulthandler.dump_traceback_later(20 * job["patience"], exit=True)
        signal.setitimer(signal.ITIMER_PROF, job["patience"])
        try:
            number = int(name) if name.isdigit() else numbers.get(name)
            kind, text = tried(path, base, number)
        except Hang:
            kind, text = "hang", traceback.format_exc()[-1500:]
        except Exception:
            kind, text = "unexpected", traceback.format_exc()[-1500:]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
        peak = (memory.peak() - start) / 2**20
        if peak > MOST / 2**20 and kind in ("refused", "attacked"):
            kind, text = "memory", f"{peak:.0f} MiB: {text}"
        seconds = time.process_time() - began
        result = {"name": name, "kind": kind, "text": text[:3000], "peak": peak, "seconds": seconds}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
