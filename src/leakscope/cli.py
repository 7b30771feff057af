"""The command line. A mistake is one clear sentence and exit code 2, never a traceback."""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leakscope.errors import InvalidInput, LeakscopeError, TasksFailed, UnknownName, printable
from leakscope.sweep import memory

if TYPE_CHECKING:
    from leakscope.bench.run import Figure

app = typer.Typer(
    help="How much of your clients' data can be rebuilt from the updates they send.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
screen = Console()
Engine = Annotated[
    str, typer.Option(help="Where it runs: in-process, processes, ray, ray:ADDRESS; auto takes processes if that pays.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Tasks at a time, one core each.", show_default="all cores")]
KINDS = ("attacks", "datasets", "defences", "metrics", "models")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the audit.")] = Path("demo-output"),
    clients: Annotated[int, typer.Option(min=1, max=100, help="How many clients to attack.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
) -> None:
    """Audit clients that send the gradient of one digit each, with and without a defence."""
    from leakscope.demo import write_demo

    config = write_demo(output, clients=clients, seed=seed)
    screen.print(f"configuration: {escape(str(config))}", soft_wrap=True)
    audit(config, output)


@app.command()
def attack(
    observations: Annotated[Path, typer.Argument(help="A saved observation, or a folder of them.")],
    name: Annotated[str, typer.Option("--attack", "-a", help="Which attack; see: leakscope list attacks.")] = (
        "inverting_gradients"
    ),
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="A setting: steps=500.")] = None,
    model: Annotated[str | None, typer.Option(help="Your own model: module:factory.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Its settings: classes=10.")] = None,
    know: Annotated[list[str] | None, typer.Option(help="More of the recipe: lr=0.1; may be given again.")] = None,
    client: Annotated[str | None, typer.Option(help="Only this client's captures.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="To score: a client's samples (.npz), or a folder with CLIENT.npz for each.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the reconstructions.")] = Path("reconstructions"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")] = None,
) -> None:
    """Attack saved observations; no truth needed, and scored with it. Finished ones are not attacked again."""
    from leakscope import attacks, captured, models, storage
    from leakscope.container import output_folder

    attacker = attacks.build(name, **_settings(option))
    own = None if model is None else models.build(model, **_settings(model_option))
    truths = None if data is None else captured.ClientData(data)
    _check_device(device)
    files, found = storage.observation_files(observations), []
    output_folder(output)
    options: dict[str, Any] = {"model": own, "knowing": _settings(know), "client": client, "data": truths}
    for one in captured.attack_captures(files, attacker, output, seed=seed, device=device, **options):
        found.append(one)
        if one.result is not None and one.result.outcome.kind == "interrupted":
            break
    refused = captured.refused_of(found)
    if not any(one.result is not None for one in found):
        raise InvalidInput(refused[0] if refused else f"there are no captures of a client called {client!r}")
    head, *rows = captured.rows_of(found, brief=True)
    table = Table(*head)
    for row in rows:
        table.add_row(*map(escape, row))
    screen.print(table)
    for sentence in refused:
        screen.print(f"refused: {escape(sentence)}", style="yellow", soft_wrap=True)
    page = captured.write_captured(found, output, attacker, "leakscope " + " ".join(sys.argv[1:]))
    screen.print(f"[bold]{escape(captured.verdict_of(found)[0])}[/bold]", soft_wrap=True)
    screen.print(f"reconstructions: {escape(str(output))}\npage: {escape(str(page))}", soft_wrap=True)
    if rows and found[-1].result is not None and found[-1].result.outcome.kind == "interrupted":
        raise typer.Exit(130)
    if refused:
        raise typer.Exit(2)


@app.command()
def infer(
    observations: Annotated[Path, typer.Argument(help="A folder of captures: many rounds of one client or more.")],
    method: Annotated[str, typer.Option(help="How to rebuild a client's model: lmra, learned, secant, ...")] = "lmra",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="A setting of it: steps=200.")] = None,
    model: Annotated[str | None, typer.Option(help="Your own model: module:factory.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Its settings: classes=10.")] = None,
    know: Annotated[list[str] | None, typer.Option(help="More of the recipe: lr=0.1; may be given again.")] = None,
    client: Annotated[str | None, typer.Option(help="Only this client's captures.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The records to ask about: a client's (.npz), or a folder with CLIENT.npz each.")
    ] = None,
    sensitive: Annotated[str | None, typer.Option(help="The column of these that is hidden, and inferred.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the models and the page.")] = Path("inferred"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
) -> None:
    """Rebuild clients' own models from many rounds, infer a hidden column, and who holds a record."""
    from leakscope import captured, inference, inferred, models, storage

    attack = inference.build(method, **_settings(option))
    own = None if model is None else models.build(model, **_settings(model_option))
    found = inferred.infer_captures(
        storage.observation_files(observations), attack, output, model=own, knowing=_settings(know), client=client,
        data=None if data is None else captured.ClientData(data), sensitive=sensitive, seed=seed,
    )  # fmt: skip
    for head, *rows in (inferred.models_table(found, brief=True), inferred.figures_table(found)):
        table = Table(*head, padding=(0, 1))
        for row in rows:
            table.add_row(*map(escape, row))
        if rows:
            screen.print(table)
    for sentence in found.notes:
        screen.print(escape(sentence), style="dim", soft_wrap=True)
    for sentence in found.refused:
        screen.print(f"refused: {escape(sentence)}", style="yellow", soft_wrap=True)
    page = inferred.write_inferred(found, output, "leakscope " + " ".join(sys.argv[1:]))
    screen.print(f"[bold]{escape(found.verdict()[0])}[/bold]\npage: {escape(str(page))}", soft_wrap=True)
    if found.refused:
        raise typer.Exit(2)


@app.command()
def audit(
    config: Annotated[Path, typer.Argument(help="A TOML file: model, data, recipe; leakscope init writes one.")],
    output: Annotated[Path, typer.Option(help="Folder for the page, the figures and finished work.")] = Path("audit"),
    fail_if: Annotated[
        list[str] | None, typer.Option(help="A limit: 'recovered > 0.05', 'idlg.psnr > 20'; may be given again.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the limits as JUnit XML to this file.")] = None,
    redact: Annotated[str, typer.Option(help="Clients' samples in the page: none, blur or omit them.")] = "none",
    engine: Engine = "auto",
    jobs: Jobs = None,
) -> None:
    """Audit a set-up: what can be rebuilt from what its clients send? Exits with 1 if a limit is broken."""
    from leakscope.auditing import checks_of, read_audit, read_condition, run_audit, to_junit
    from leakscope.auditing.report import by_defence, write_audit
    from leakscope.container import write_atomically
    from leakscope.display import watching
    from leakscope.setup import read_toml
    from leakscope.sweep import check_engine

    check_engine(engine, jobs)
    plan = read_audit(read_toml(config), str(config))
    limits = fail_if or []
    for text in limits:
        read_condition(text, list(plan.attacks))
    screen.print(f"first look, before any attack: [bold]{plan.first_look.risk} risk[/bold]")
    for finding in plan.first_look.findings:
        screen.print(f"  {escape(finding.sentence)}", style="dim", soft_wrap=True)
    with watching() as watch:
        found = run_audit(plan, output / "store", engine=engine, jobs=jobs, watch=watch)
    if not found.results:
        raise found.failed or typer.Exit(130)
    table = Table("attack", "defence", "attacker", "PSNR (chance)", "clients", "verdict", padding=(0, 1))
    for (attack, title, knows), group in found.groups().items():
        figures, verdict = found.figures(group), found.verdict(group)
        psnr = f"{figures['psnr'].mean:.1f} ({figures['psnr'].chance:.1f})" if "psnr" in figures else "-"
        colour = "red" if verdict == "recovers data" else "green"
        who = "knows the defence" if knows else ""
        table.add_row(escape(attack), escape(title), who, psnr, str(len(group)), f"[{colour}]{verdict}[/{colour}]")
    screen.print(table)
    checks = checks_of(found, limits)
    for one in checks:
        if one.failed:
            screen.print(f"limit broken: {escape(one.sentence())}", style="bold red", soft_wrap=True)
    if junit is not None:
        write_atomically(junit, to_junit(checks))
    page = write_audit(found, output, command="leakscope " + " ".join(sys.argv[1:]), redact=redact, checks=checks)  # type: ignore[arg-type]
    screen.print(f"[bold]{escape(by_defence(found))}[/bold]\npage: {escape(str(page))}", soft_wrap=True)
    if any(one.failed for one in checks) and found.failed is not None:
        _complain(str(found.failed))
    elif not found.complete:
        raise found.failed or typer.Exit(130)
    if any(one.failed for one in checks):
        raise typer.Exit(1)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("audit.toml"),
    model: Annotated[str | None, typer.Option(help="A model's name, or module:factory.")] = None,
    data: Annotated[str | None, typer.Option(help="A dataset's name, a folder of pictures, .npz or .csv.")] = None,
    sends: Annotated[str, typer.Option(help="What clients send: weights or gradient.")] = "weights",
    samples: Annotated[int, typer.Option(min=1, help="Samples of a client.")] = 10,
    lr: Annotated[float, typer.Option(help="The clients' learning rate.")] = 0.01,
    epochs: Annotated[int, typer.Option(min=1, help="Local epochs.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 10,
) -> None:
    """Write a commented configuration for an audit, from flags or by asking."""
    from leakscope.auditing.template import write_template

    asking = sys.stdin.isatty()
    if model is None:
        model = typer.prompt("model (a name, or module:factory)") if asking else "lenet"
    if data is None:
        data = typer.prompt("data (a name, a folder of pictures, .npz or .csv)") if asking else "mnist5k"
    written = write_template(
        path, model=model, data=data, sends=sends, samples=samples, lr=lr, epochs=epochs, batch_size=batch_size
    )
    screen.print(f"written: {escape(str(written))}; now run: leakscope audit {escape(str(written))}", soft_wrap=True)


@app.command()
def frontier(
    config: Annotated[Path, typer.Argument(help="A TOML file: set-up, attack and defences.")],
    output: Annotated[Path, typer.Option(help="Folder for the table, the figure and the page.")] = Path("frontier"),
    engine: Engine = "auto",
    jobs: Jobs = None,
) -> None:
    """Draw what each defence buys and what it costs: leakage against accuracy."""
    from leakscope.display import watching
    from leakscope.frontier import measure_frontier, read_plan, write_frontier
    from leakscope.setup import read_toml
    from leakscope.sweep import check_engine

    check_engine(engine, jobs)
    plan = read_plan(read_toml(config), str(config))
    points = []
    try:
        with watching() as watch:
            for point in measure_frontier(plan, folder=output / "store", engine=engine, jobs=jobs, watch=watch):
                points.append(point)
                screen.print(escape(point.sentence(plan)), style="red" if point.leaks else "green", soft_wrap=True)
    finally:  # what was measured is kept, whatever ends the run
        if points:
            order = list(plan.chains)
            points.sort(key=lambda point: order.index(point.title))
            page = write_frontier(points, plan, output, "leakscope " + " ".join(sys.argv[1:]))
            screen.print(f"page: {escape(str(page))}", soft_wrap=True)


@app.command()
def bench(
    context: typer.Context,
    paper: Annotated[str | None, typer.Argument(help="Whose tables (dlf), or: speed.")] = None,
    row: Annotated[str | None, typer.Option(help="A row, or a table: table1/femnist-10x5x50, table1.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given again.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="On how many clients.", show_default="the row's")] = None,
    skip: Annotated[int, typer.Option(min=0, help="Leave out the first so many clients.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Attack steps instead of the row's own.")] = None,
    short: Annotated[bool, typer.Option("--short", help="The row's short setting: fewer steps or clients.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    engine: Engine = "auto",
    jobs: Jobs = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    names: Annotated[bool, typer.Option("--list", help="Name the rows and their methods.")] = False,
    save: Annotated[bool, typer.Option(help="Add the figures to the benchmark's results.csv.")] = True,
    store: Annotated[Path | None, typer.Option(help="Keep what tasks give in this folder, and go on there.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Folder for pictures of what came back.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often to measure; for speed only.")] = 3,
) -> None:
    """Run a paper's tables: the published figure, ours with a 95% interval, chance and cost.

    Or measure the speed: what a step of an attack costs, beside the client's own training.
    """
    from leakscope.bench.rows import find_rows, papers
    from leakscope.bench.run import keep, run_rows
    from leakscope.display import watching
    from leakscope.sweep import check_engine

    if paper == "speed":
        others = {
            "row",
            "method",
            "clients",
            "skip",
            "steps",
            "short",
            "seed",
            "engine",
            "jobs",
            "save",
            "store",
            "pictures",
        }
        _refuse(context, paper, others)
        _bench_speed(repeats, as_json=as_json, names=names)
        return
    known = [*papers(), "speed"]
    if paper is None and names:
        screen.print("\n".join(known))
        return
    if paper is None:
        raise InvalidInput(f"which benchmark? There are: {', '.join(known)}")
    if paper not in known:
        raise UnknownName("benchmark", paper, known)
    _refuse(context, paper, {"repeats"})
    check_engine(engine, jobs)
    rows = find_rows(paper, row)
    if names:
        for one in rows:
            screen.print(f"{one.name}  [dim]{escape(', '.join(one.methods))}[/dim]", soft_wrap=True)
        return
    command = "leakscope " + " ".join(sys.argv[1:])
    with watching() as watch:
        for figure in run_rows(
            rows,
            methods=method or (),
            clients=clients,
            skip=skip,
            steps=steps,
            seed=seed,
            engine=engine,
            jobs=jobs,
            watch=watch,
            pictures=pictures,
            short=short,
            folder=store,
        ):
            if save:
                keep(figure, command)
            if as_json:
                print(json.dumps(figure.to_json()), flush=True)
            else:
                _show(figure)


def _refuse(context: typer.Context, benchmark: str, names: set[str]) -> None:
    """Refuse options that were given and that belong to another benchmark."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            words = "/".join((*option.opts, *option.secondary_opts))
            raise InvalidInput(f"leakscope bench {benchmark} has no option {words}")


def _bench_speed(repeats: int, *, as_json: bool, names: bool) -> None:
    from leakscope.bench.speed import FIGURES, measure_speed

    if names:
        for name, meaning in FIGURES.items():
            screen.print(f"{name}  [dim]{escape(meaning)}[/dim]", soft_wrap=True)
        return
    found = measure_speed(repeats=repeats).to_json()
    if as_json:
        print(json.dumps(found), flush=True)
        return
    table = Table("figure", "value", "what it is", padding=(0, 1))
    for name, meaning in FIGURES.items():
        table.add_row(name, f"{found[name]:.3g}", escape(meaning))
    screen.print(table)
    seconds = ", ".join(f"{name} {value:.3g}" for name, value in found["seconds"].items())
    screen.print(f"one thread, {repeats} turns, medians; CPU seconds: {seconds}", style="dim", soft_wrap=True)


def _show(figure: Figure) -> None:
    """One method of one row as a small table."""
    screen.print(f"[bold]{escape(figure.row.name)}[/bold] {escape(figure.method.name)}", highlight=False)
    screen.print(
        f"  {figure.clients} clients, {figure.steps} steps, {figure.seconds:.1f} seconds a client", style="dim"
    )
    table = Table("metric", "ours", "95% interval", "published", "chance", padding=(0, 1))
    for name, value in figure.ours.items():
        interval = "-" if value.low is None or value.high is None else f"{value.low:.4g} to {value.high:.4g}"
        published = str(figure.method.published.get(name, "-"))
        chance = f"{figure.chance[name]:.4g}" if name in figure.chance else "-"
        table.add_row(name, f"{value.mean:.4g}", interval, published, chance)
    screen.print(table)


@app.command("list")
def list_names(kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(KINDS)}.")] = None) -> None:
    """What there is: attacks, datasets, defences, metrics, models."""
    from leakscope import attacks, data, defences, metrics, models

    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of thing", kind, KINDS)
    tables: dict[str, dict[str, str]] = {
        "attacks": {key: _summary(factory) for key, factory in attacks.ATTACKS.items()},
        "datasets": {key: f"{source.summary} [{source.origin}]" for key, source in data.DATASETS.items()},
        "defences": {key: _summary(factory) for key, factory in defences.DEFENCES.items()},
        "metrics": {key: metric.description for key, metric in metrics.METRICS.items()},
        "models": {
            **{key: _summary(factory) for key, factory in models.MODELS.items()},
            "module:factory": "your own: any importable function that returns an nn.Module",
        },
    }
    for title in KINDS if kind is None else (kind,):
        screen.print(title, style="bold")
        for key, text in tables[title].items():
            screen.print(f"  {escape(key):<20} {escape(text)}", soft_wrap=True)


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A dataset: load it and say what is in it.")] = None,
    folder: Annotated[Path | None, typer.Option(help="A data folder instead of LEAKSCOPE_DATA.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of it.")] = None,
    download: Annotated[bool, typer.Option(help="Whether the network may be asked.")] = True,
) -> None:
    """Where each dataset would be found on this machine; with a name, load it and describe it."""
    from leakscope.data import DATASETS, load, locate

    if name is None:
        table = Table("dataset", "found", "where")
        for key in DATASETS:
            places = [place for place in locate(key, folder) if place.found]
            first = places[0] if places else locate(key, folder)[-1]
            word = "no" if not places else "by download" if first.place == "download" else "yes"
            table.add_row(key, word, escape(f"{first.place}: {first.detail}"))
        screen.print(table)
        return
    for place in locate(name, folder):
        screen.print(f"{'found' if place.found else 'not':>6}  {escape(place.place)}: {escape(place.detail)}")
    loaded = load(name, split=split, folder=folder, download=download)
    spec = loaded.spec
    screen.print(f"{escape(name)}: {len(loaded):,} samples of shape {spec.shape}")
    screen.print("regression" if spec.classes is None else f"{spec.classes} classes")
    if loaded.groups is not None:
        screen.print(f"{len(loaded.groups.unique()):,} owners (writers, people or clients)")
    if loaded.sensitive:
        screen.print(f"sensitive column: {escape(loaded.sensitive)}")


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """``key=value`` words as a dict; a value is read as JSON, or else is a text."""
    settings: dict[str, Any] = {}
    for pair in pairs or ():
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise InvalidInput(f"a setting is written key=value, not {pair!r}")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def _check_device(device: str | None) -> None:
    if device is None:
        return
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise InvalidInput(f"cannot compute on {device!r}: {str(problem).splitlines()[0]}") from problem


def _summary(thing: object) -> str:
    """The first line of a docstring; for an attack, of the paper's file."""
    module = inspect.getmodule(thing)
    where = module if module is not None and ".attacks." in module.__name__ else thing
    return (inspect.getdoc(where) or "").partition("\n")[0].rstrip(":")


def main() -> None:
    """Run the command line."""
    memory.reuse()
    try:
        code = app(standalone_mode=False)
    except TasksFailed as problem:
        if os.environ.get("LEAKSCOPE_DEBUG"):
            raise
        _complain(f"{problem}\n(LEAKSCOPE_DEBUG=1 shows where the first went wrong)")
        code = 3
    except LeakscopeError as problem:
        code = _complain(str(problem))
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        code = 130
    except Exception as problem:
        code = _complain(_words(problem))
    sys.exit(code)


def _words(problem: Exception) -> str:
    """A mistake on the command line in Typer's words, which come in a class that depends on its version; or a bug."""
    if hasattr(problem, "format_message"):
        return str(problem.format_message())
    if os.environ.get("LEAKSCOPE_DEBUG"):
        raise problem
    what = str(problem).partition("\n")[0] or "no message"
    return f"{type(problem).__name__}: {what} (unexpected: please report it; LEAKSCOPE_DEBUG=1 shows the traceback)"


def _complain(sentence: str) -> int:
    lines = [printable(line, longest=2000) for line in sentence.splitlines()]  # a file's name may hold anything
    print("leakscope:", "\n".join(lines), file=sys.stderr)
    return 2
