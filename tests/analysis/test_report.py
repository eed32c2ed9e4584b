"""The page: everything is in it, nothing from outside, nothing unescaped, nothing on top of anything else."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from analysis import charts
from analysis.report import to_html
from analysis.selection import Selector
from analysis.svg import CHAR, MAX_POINTS, Axis, Plot
from analysis.text import to_markdown, to_text
from tests.analysis.sweeps import candidates, compared, make_sweep, request

EVIL = "<script>alert('x')</script> & \"quoted\" | `tick`"
STEPS = 12


def comparison(root, runs=None, **changes):
    return compared(make_sweep(pairs=4, steps=STEPS, seed=1) if runs is None else runs, root, request(**changes))


def hostile():
    runs = make_sweep(pairs=5, steps=STEPS, seed=1)
    for run in runs:
        run.config["path"]["name"] = EVIL
        run.config["note"] = {EVIL: EVIL}
        run.checks.append({"name": f"check {EVIL}", "verdict": "pass", "evidence": EVIL})
    for run in candidates(runs):
        run.config["kernel"]["name"] = EVIL
    candidates(runs)[0].state, candidates(runs)[0].reason = "failed", EVIL
    return runs


def plots(page):
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.S)]


class Tags(HTMLParser):
    """Tags that are open at the end, and all that were seen."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags(page):
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


def test_the_page_says_it_all(tmp_path):
    page = to_html(comparison(tmp_path))
    for text in ("nki_rope against baseline", "Steady throughput", "Is it the same training?", "Method", "equivalent"):
        assert text in page
    assert len(plots(page)) == 9  # forest, throughput, 2 x step times, 2 x loss, 2 x gradient norm, memory
    tags(page)


def test_an_a_a_comparison_is_called_one(tmp_path):
    from tests.analysis.sweeps import AA

    runs = make_sweep(pairs=4, steps=STEPS, experiment="aa", kernels=("baseline", "baseline"))
    found = comparison(tmp_path, runs, baseline=AA, candidate=AA)
    assert "<h1>A/A: experiment=aa</h1>" in to_html(found)


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    page = to_html(comparison(tmp_path))
    assert not re.search(r"""(src|href|action)\s*=|url\(|@import|https?://""", page)
    names = {tag for tag, _ in tags(page)}
    assert not names & {"script", "link", "img", "iframe", "object"}


def test_what_came_from_logs_and_configurations_is_escaped(tmp_path):
    found = comparison(tmp_path, hostile(), candidate=Selector((("kernel", EVIL),)))
    assert len(found.pairs) == 4
    page = to_html(found)
    assert "<script" not in page
    assert "alert(&#39;x&#39;)" in page
    assert not {"script"} & {tag for tag, _ in tags(page)}
    assert not any(name.startswith("on") for _, attributes in tags(page) for name in attributes)
    markdown = to_markdown(found)
    assert "<script" not in markdown
    assert all(line.count(" | ") <= 7 for line in markdown.splitlines() if line.startswith("|"))


def test_a_refused_comparison_has_a_page_too(tmp_path):
    runs = make_sweep(pairs=3, steps=STEPS)
    for run in candidates(runs):
        run.config["train"]["seq_len"] = 2048
    page = to_html(comparison(tmp_path, runs))
    assert "Not comparable: the arms differ in train.seq_len" in page
    assert plots(page) == []
    tags(page)


def test_a_rehearsal_says_so_in_every_form(tmp_path):
    runs = make_sweep(pairs=3, steps=STEPS)
    for run in runs:
        run.config["rehearsal"] = True
    found = comparison(tmp_path, runs)
    for text in (to_html(found), to_text(found), to_markdown(found)):
        assert "this says nothing about Trainium" in text
    assert "Trainium" not in to_text(comparison(tmp_path / "full"))


def test_pages_without_pairs_and_with_broken_curves(tmp_path):
    runs = make_sweep(pairs=3, steps=STEPS)
    for run in runs:
        run.state = "failed"
    page = to_html(comparison(tmp_path / "none", runs))
    assert "Unresolved: no pair of usable runs" in page
    runs = make_sweep(pairs=3, steps=STEPS)
    for run in candidates(runs):
        run.loss[:] = np.nan
    page = to_html(comparison(tmp_path / "nan", runs))
    assert "It is not the same training" in page
    assert "nan" not in "".join(re.findall(r'(?:points|cx|cy|d)="[^"]*"', page)).lower()


# -- plots ------------------------------------------------------------------------------------------------------------


def boxes(svg):
    """Rough boxes (left, right, top, bottom) of the horizontal texts of a plot."""
    found = []
    for text in svg.iter("text"):
        if "transform" in text.attrib:
            continue
        width = len(text.text or "") * (CHAR if text.attrib["class"] == "tick" else 6.6)
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        left = {"start": x, "middle": x - width / 2, "end": x - width}[text.attrib["text-anchor"]]
        found.append((left, left + width, y - 10, y + 2, text.text))
    return found


@pytest.mark.parametrize("pairs", [1, 4, 40])
def test_no_text_overlaps_and_every_axis_has_a_name(pairs, tmp_path):
    page = to_html(comparison(tmp_path, make_sweep(pairs=pairs, steps=STEPS, seed=2)))
    for svg in plots(page):
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        for one, other in itertools.combinations(boxes(svg), 2):
            apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
            assert apart, (svg.find("title").text, one, other)
        for left, right, top, bottom, text in boxes(svg):
            assert left >= 0, text
            assert right <= width, text
            assert top >= 0, text
            assert bottom <= height, text
        axes = [text.text for text in svg.iter("text") if text.attrib["class"] == "axis"]
        assert 1 <= len(axes) <= 2
        assert all("(" in text or "order" in text for text in axes), axes


def test_marks_stay_inside_the_panel(tmp_path):
    runs = make_sweep(pairs=4, steps=STEPS, seed=2)
    runs[3].step_s[6] *= 50
    for svg in plots(to_html(comparison(tmp_path, runs))):
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        for line in svg.iter("polyline"):
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, ["0", "2", "4", "6", "8", "10"]),
        (-1.4, 1.4, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        (519_000, 535_000, ["520,000", "525,000", "530,000", "535,000"]),
        (1.2e9, 3.4e9, ["1.5e+09", "2e+09", "2.5e+09", "3e+09"]),
        (2e-6, 9e-6, ["2e−06", "4e−06", "6e−06", "8e−06"]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert [text for _, text in Axis(label="", low=low, high=high).ticks(6)] == expected


def test_a_logarithmic_axis():
    axis = Axis.around("", [0.5, 20.0], log=True)
    assert [text for _, text in axis.ticks(5)] == ["0.5", "1.0", "2.0", "5.0", "10.0", "20.0"]
    assert axis.place(axis.low) == 0
    assert axis.place(axis.high) == pytest.approx(1)


def test_long_lines_are_thinned_without_losing_a_spike():
    plot = Plot("", Axis(label="", low=0, high=1e5), Axis(label="", low=0, high=20))
    plot.line([(step, 15.0 if step == 54_321 else 1.0) for step in range(100_000)], "line")
    points = re.findall(r"([\d.]+),([\d.]+)", plot.marks[0])
    assert len(points) <= MAX_POINTS
    assert min(float(y) for _, y in points) == pytest.approx(plot.py(15.0))


def test_recompiles_and_warmup_are_marked(tmp_path):
    runs = make_sweep(pairs=3, steps=40, seed=3)
    for run in candidates(runs):
        run.step_s[20] *= 3
    found = comparison(tmp_path, runs)
    whole, steady = charts.step_times(found)
    assert whole.count("<polygon") == steady.count("<polygon") == 3
    assert "recompile at step 21" in whole
    assert 'class="band warmup"' in whole
    assert 'class="band warmup"' not in steady
