"""The published tables: their JSON from run files, and the pages of docs/ from the JSON.

    python benchmarks/tables.py collect [NAME...]    results/NAME.json from results/*-runs.tar.xz
    python benchmarks/tables.py docs [--check]       tables and figures of docs/ from results/*.json

A page says where a table stands: what is between ``<!-- table: NAME -->`` and ``<!-- end -->`` is
written by this script and by nothing else. ``--check`` writes nothing, and fails where a page is
not what its JSON says.
"""

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial

import grid_path
import learned_covariance
import projection
import scoreboard
import subset_dvae
import table1
import table2
import table3
import table3_revival
import table_listops
import table_rest
import table_solvers
import terrain
from table_data import DOCS, RESULTS, Data, read_json, to_text

# What is made from run files; the other JSON files were written by the benchmark that measured.
COLLECTED: dict[str, Callable[[], Data]] = {
    "table1": table1.collect,
    "table2": table2.collect,
    "table3": table3.collect_table3,
    "table3-revival": table3_revival.collect,
    "appendix": table3.collect_appendix,
    "demo": table_rest.collect_demo,
    "subset-dvae": subset_dvae.collect,
    "listops": table_listops.collect,
    "terrain": terrain.collect,
    "scoreboard": scoreboard.collect,
    "learned-covariance": learned_covariance.collect,
}
PROJECTED = ("shares-h200", "relational-step-h200", "parser-step-h200")
# A table of a page: how it is written, and the JSON files it is of.
TABLES: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "table1": (table1.main_table, ("table1",)),
    "table1-cost": (table1.cost_table, ("table1",)),
    "table1-starts": (table1.starts_table, ("table1",)),
    "table1-targets": (table1.target_table, ("table1",)),
    "table1-nes": (table1.curve_table, ("table1",)),
    "gradient-quality": (table_rest.gradient_table, ("gradient-quality-h200",)),
    "table2": (table2.main_table, ("table2",)),
    "table2-rates": (table2.rates_table, ("table2",)),
    "table2-settings": (table2.settings_table, ("table2",)),
    "relaxations": (table2.relaxations_table, ("relaxations-cpu",)),
    "table3": (table3.main_table, ("table3",)),
    "table3-populations": (table3.population_table, ("table3",)),
    "table3-categories": (table3.used_table, ("table3",)),
    "table3-revival": (table3_revival.main_table, ("table3-revival", "table3")),
    "table3-revival-rivals": (table3_revival.rivals_table, ("table3-revival", "table3")),
    "table3-revival-search": (table3_revival.search_table, ("table3-revival",)),
    "table3-snes": (table3.snes_table, ("table3",)),
    "table3-search": (table3.search_table, ("table3",)),
    "epochs": (table3.epoch_table, ("epoch-h200", "epoch-cpu")),
    "unstructured": (table3.unstructured_table, ("appendix",)),
    "bounds": (table3.bound_table, ("appendix",)),
    "gaps": (table3.gap_table, tuple(f"gap-{sigma}" for sigma in table3.SIGMAS)),
    "subset-dvae": (subset_dvae.main_table, ("subset-dvae",)),
    "listops": (table_listops.main_table, ("listops",)),
    "terrain": (terrain.main_table, ("terrain",)),
    "terrain-search": (terrain.search_table, ("terrain",)),
    "grid-path": (grid_path.main_table, ("grid-path",)),
    "grid-path-all": (grid_path.all_table, ("grid-path",)),
    "grid-path-step": (grid_path.step_table, ("grid-path-step",)),
    "layer-speed": (table_rest.layer_table, ("layer-speed",)),
    "scoreboard": (scoreboard.main_table, ("scoreboard",)),
    "scoreboard-cost": (scoreboard.cost_table, ("scoreboard",)),
    **{
        f"scoreboard-gradients-{task.lower()}": (
            partial(table_rest.scoreboard_gradient_table, task=task),
            ("scoreboard-gradients",),
        )
        for task in ("Paths", "Trees", "Subsets")
    },
    "solvers": (table_solvers.main_table, ("solvers-cpu",)),
    "solvers-h200": (table_solvers.main_table, ("solvers-h200",)),
    "figure2-cpu": (table_rest.scaling_table, ("scaling-cpu",)),
    "figure2-cuda": (table_rest.scaling_table, ("scaling-cuda",)),
    "learned-covariance": (learned_covariance.main_table, ("learned-covariance",)),
    "estimate-cosine": (table_rest.cosine_table, ("estimate-cosine-cpu",)),
    "demo": (table_rest.demo_table, ("demo",)),
    "relational-step": (table_rest.relational_table, ("relational-step-h200",)),
    "relational-kernels": (table_rest.kernel_table, ("relational-kernels-h200",)),
    "processes": (table_rest.processes_table, ("scaling-processes-cpu",)),
    "projection": (projection.projection_table, PROJECTED),
    "projection-constants": (projection.constants_table, PROJECTED),
    "wire": (projection.wire_table, ("wire-cpu",)),
}
_PLACE = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n.*?<!-- end -->\n", re.DOTALL)


def written(text: str) -> str:
    """A page with its tables as the JSON files have them."""

    def fill(place: re.Match[str]) -> str:
        write, files = TABLES[place["name"]]
        table = write(*map(read_json, files))
        return f"<!-- table: {place['name']} -->\n\n{table}\n<!-- end -->\n"

    return _PLACE.sub(fill, text)


def collect(names: list[str]) -> None:
    for name in names or COLLECTED:
        if name not in COLLECTED:
            sys.exit(f"{name} is not made from run files; there are: {', '.join(COLLECTED)}.")
        (RESULTS / f"{name}.json").write_text(to_text(COLLECTED[name]()), encoding="utf-8")
        print(f"Wrote {name}.json.")


def docs(*, check: bool) -> list[str]:
    """Writes the pages and figures; with `check`, only says which pages are not as they should."""
    wrong = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if written(text) != text:
            wrong.append(page.name)
            if not check:
                page.write_text(written(text), encoding="utf-8")
    if not check:
        import table_figures  # which needs matplotlib

        table_figures.draw(DOCS / "figures")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    made = verbs.add_parser("collect", help="results/NAME.json from archives of run files")
    made.add_argument("names", nargs="*", metavar="NAME", default=[])
    shown = verbs.add_parser("docs", help="tables and figures of docs/ from results/*.json")
    shown.add_argument("--check", action="store_true", help="write nothing, fail where they differ")
    options = parser.parse_args()
    if options.verb == "collect":
        collect(options.names)
        return
    wrong = docs(check=options.check)
    if wrong and options.check:
        sys.exit(f"Not what results/ says: {', '.join(wrong)}; run this without --check.")
    print(f"Written anew: {', '.join(wrong) or 'no page'}.")


if __name__ == "__main__":
    main()
