"""The example of I/O monitoring, for a moment: it runs, measures something, and draws it."""

import os
import subprocess
import xml.etree.ElementTree as ElementTree

from conftest import SARTOR

RUN = os.path.join(os.path.dirname(__file__), "../examples/monitoring/run")


def run(*options):
    return subprocess.run([RUN, *options], capture_output=True, text=True, timeout=60)


def test_it_measures_what_it_says_and_draws_it(tmp_path):
    svg = tmp_path / "figure.svg"
    layouts = "tree lsm,tree,log"
    done = run("--sartor", SARTOR, "--seconds", "0.2", "--samples", "20", "--only", layouts, "--svg", str(svg))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:4]]
    assert rows[0][:3] == ["all", "tree", "(memory)"] and rows[1][:5] == ["lsm", "+", "tree", "+", "log"]
    for row in rows:
        rates = row[-8:]
        assert all(float(rate.strip("kM")) > 0 for rate in rates[:5]), done.stdout
    bars = [tag for tag in ElementTree.parse(svg).iter() if tag.tag.endswith("rect") and len(tag)]
    # Four panels of two bars, of which the higher one is drawn as high as there is room for.
    heights = [float(bar.get("height")) for bar in bars]
    assert len(heights) == 8 and all(max(pair) == 230 for pair in zip(heights[::2], heights[1::2]))


def test_what_is_missing_is_said():
    done = run("--sartor", "/nowhere/sartor")
    assert done.returncode == 1 and "make release" in done.stderr and "Traceback" not in done.stderr
    done = run("--sartor", SARTOR, "--only", "masstree")
    assert done.returncode == 1 and "unknown datalet 'masstree'" in done.stderr and "Traceback" not in done.stderr
