"""A report about a model for terminals, notebooks and as a page: the culprit first, then the module tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from gradvet.core.blame import BlameReport, Culprit, Piece, TreeNode
from gradvet.core.results import Verdict
from gradvet.reports import html, wording
from gradvet.reports.terminal import COLOURS, indented, labelled, mismatch_table, plain_text

MAX_CULPRITS = 3
"""Number of culprits that are shown with their entries; further ones take one line each."""

MAX_OTHERS = 4
"""Number of further places of the same fault that are named."""

MAX_UNREPLAYED = 5
"""Number of pieces without verdict that a terminal lists."""


def text(report: BlameReport) -> str:
    """The report as plain text."""
    return plain_text(renderable(report))


def renderable(report: BlameReport) -> RenderableType:
    """The report for rich: one line for a pass, the culprits and the tree otherwise."""
    parts: list[RenderableType] = [_head(report)]
    for number, culprit in enumerate(report.culprits):
        parts += _culprit(culprit) if number < MAX_CULPRITS else [indented(Text(str(culprit), COLOURS[Verdict.FAIL]))]
    for warning in report.warnings:
        parts.append(indented(Text.assemble(("warning", COLOURS[Verdict.INCONCLUSIVE]), f": {warning}")))
    if report.tree is not None and report.verdict is not Verdict.PASS:
        parts.append(indented(_grown(Tree(_node(report.tree), guide_style="dim"), report.tree)))
    parts += [labelled(label, line) for label, line in remarks(report)]
    return Group(*parts)


def remarks(report: BlameReport) -> Iterator[tuple[str, str]]:
    """What could not be replayed, what was accepted, and notes, as pairs of label and text."""
    for piece in report.unreplayed[:MAX_UNREPLAYED]:
        yield "no verdict", f"{piece}{_called(piece)}: {piece.reason}"
    if len(report.unreplayed) > MAX_UNREPLAYED:
        yield "no verdict", f"{len(report.unreplayed) - MAX_UNREPLAYED} more pieces (report.unreplayed)"
    for piece in report.pieces:
        if piece.is_replayed and piece.verdict is Verdict.INCONCLUSIVE and piece.report is not None:
            why = next(iter(wording.notable_findings(piece.report)), None)
            headline = why.headline if why else "not everything could be compared"
            yield "undecided", "; ".join(filter(None, (f"{piece}: {headline}", piece.reason)))
    for stop in report.accepted:
        yield "held constant", f"{stop.place} {stop.place.code}"
    for note in report.notes:
        yield "note", note


def _called(piece: Piece) -> str:
    return f", called in {piece.called}" if piece.called is not None else ""


def _summary(report: BlameReport) -> str:
    kinds = Counter(piece.kind for piece in report.pieces if piece.is_replayed)
    checked = ", ".join(wording.counted(count, f"{kind} call") for kind, count in kinds.items())
    return f"checked alone: {checked or 'nothing'}; {wording.seconds(report.seconds)}"


def _head(report: BlameReport) -> Text:
    head = Text()
    head.append(str(report.verdict), COLOURS[report.verdict])
    head.append(f" {report.title}", "bold")
    return head.append(f"  {_summary(report)}", "dim")


def _culprit(culprit: Culprit) -> Iterator[RenderableType]:
    yield indented(Text(str(culprit), COLOURS[Verdict.FAIL]))
    if culprit.place is not None and culprit.place.code:
        yield indented(Text(f"{culprit.place}  {culprit.place.code}"), 4)
    if culprit.called is not None and culprit.called != culprit.place:
        yield indented(Text(f"called in {culprit.called}  {culprit.called.code}"), 4)
    if culprit.others:
        yield indented(Text(f"the same in {wording.listed(culprit.others, MAX_OTHERS)}"), 4)
    for stop in culprit.stops:
        if stop.place != culprit.place:
            yield indented(Text(f"see also {stop.place}  {stop.place.code}: {stop.what}"), 4)
    if culprit.finding is not None and culprit.finding.mismatches:
        yield indented(mismatch_table(culprit.finding), 4)
    if culprit.advice:
        yield indented(Text(culprit.advice, "italic"), 4)


def _grown(tree: Tree, node: TreeNode) -> Tree:
    """The tree with the branches of what is below a node: notable ones one by one, others together."""
    pieces = Counter((f"{p.kind} {p.name}", p.verdict) for p in node.pieces if p.verdict is not Verdict.PASS)
    for (name, verdict), count in pieces.items():
        times = f" ({count} calls)" if count > 1 else ""
        tree.add(Text.assemble(f"{name}{times} ", (_word(verdict), COLOURS[verdict])))
    for group in grouped(tuple(child for child in node.children if _is_shown(child))):
        if len(group) > 1 or not _is_notable(group[0]):
            names = group[0].path if len(group) == 1 else f"{group[0].path} … {group[-1].path}"
            tree.add(Text.assemble(f"{names} ", (_word(group[0].verdict), COLOURS[group[0].verdict])))
        else:
            _grown(tree.add(_node(group[0])), group[0])
    return tree


def _is_shown(node: TreeNode) -> bool:
    """Whether something is known about a node or about those below it."""
    return node.verdict is not Verdict.SKIPPED or bool(node.pieces) or any(map(_is_shown, node.children))


def grouped(nodes: tuple[TreeNode, ...]) -> list[list[TreeNode]]:
    """Neighbours with the same verdict together; notable ones alone."""
    groups: list[list[TreeNode]] = []
    for node in nodes:
        before = groups[-1][0] if groups else None
        if before is not None and before.verdict is node.verdict and not _is_notable(node) and not _is_notable(before):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _is_notable(node: TreeNode) -> bool:
    """Whether a node, or one below it, has a verdict other than PASS or none."""
    return (
        node.verdict not in (Verdict.PASS, Verdict.SKIPPED)
        or bool(node.note)
        or any(piece.verdict is not Verdict.PASS for piece in node.pieces)
        or any(map(_is_notable, node.children))
    )


def _node(node: TreeNode) -> Text:
    label = f"{node.path.rpartition('.')[2]} {node.name}".strip()
    note = f" {node.note}" if node.note else ""
    return Text.assemble(f"{label} ", (_word(node.verdict), COLOURS[node.verdict]), (note, "dim"))


def _word(verdict: Verdict) -> str:
    return "not checked alone" if verdict is Verdict.SKIPPED else str(verdict)


def fragment(report: BlameReport) -> str:
    """The report for a notebook, with a tree that folds."""
    return html.rendered("blame.html.j2", report=report, **_values(report), is_page=False)


def page(report: BlameReport) -> str:
    """The report as an HTML document in one file."""
    values = _values(report) | html.origin()
    return html.rendered("blame_page.html.j2", report=report, **values, is_page=True, summary=_summary(report))


def _values(report: BlameReport) -> dict[str, object]:
    return {"remarks": list(remarks(report)), "word": _word}
