"""docs/benchmarks.md, made of the record of a run: for every figure its table, the paper's shape and ours."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from bench.cases import all_cases
from bench.showing import markdown, our_shape, ratio, worse

Record = dict[str, Any]

HEAD = """# Benchmarks

The experiments of the papers that windrow is built on, on windrow, on baselines and on systems that people would use
instead. This page is written by `python -m bench docs RUN.json`; nothing on it is typed in by hand.

"""

READING = """
## How to read it

- A cell is the best of {runs} runs, its median in brackets, and how many times better windrow is (**below 1
  windrow is worse**). What is compared ran alternately in one process, each system on one thread.
- `buffer` keeps events and computes every window from them at its end (CeBuffer, Deco's Central). `buckets` has
  a partial aggregate for each window of each query (Flink's DataStream, DeBucket). `per_function` is windrow's
  slicing without the sharing between functions and measures (Scotty, DeSW). All three are written in Polars and
  NumPy, as windrow is. `duckdb`, `polars`, `spark`, `bytewax` and `flink` are those, used as their documentation
  says, and measured where they have a column: not all are installed everywhere, or can answer everything.
- Every system's results were compared with those of the oracle on a few hundred events, and with windrow's at
  the size that was measured.
- What does not change from run to run, such as bytes, is taken once and has no median.
- A system that would have taken too long got the beginning of the stream, in batches of the same size.
- Trees of nodes run in one process. Throughput is that of the busiest node by its processor time, as if each
  node had a machine; bytes are those of the messages, compressed in the same way by all, without the
  transport's headers.
- The papers' systems are written in Java and work event by event, on clusters; windrow and the baselines work
  on batches. So shapes can be compared, and absolute numbers cannot.
"""

PAPERS = {
    "Scotty": "Scotty: General and Efficient Open-Source Window Aggregation for Stream Processing Systems",
    "Desis": "Desis: Efficient Window Aggregation in Decentralized Networks",
    "Disco": "Disco: decentralised window aggregation",
    "Deco": "Deco: Fast and Accurate Decentralized Aggregation of Count-based Windows",
}


def document(record: Record) -> str:
    """The whole page."""
    parts = [HEAD, _reservations(record), _where(record), READING.format(runs=record["runs"]), _summary(record)]
    for paper, cases in groupby(record["cases"], key=lambda case: case["figure"].partition(",")[0]):
        parts.append(f"\n## {PAPERS[paper]}\n")
        parts += [_case(case) for case in cases]
    return "".join(parts)


def _reservations(record: Record) -> str:
    """Why the numbers are not to be relied on, where they are not."""
    machine = record["machine"]
    said = []
    if record["size"] == "tiny":
        said.append(
            "at size `tiny` beginning costs more than the events, so that it shows that everything runs, not how fast"
        )
    if machine["load"] > machine["cores"]:
        said.append(
            f"the machine was busy with other things (load {machine['load']:.1f} on {machine['cores']} cores), so times"
        )
        said[-1] += " and everything that is made of them are not to be relied on; bytes, slices and counts are"
    there = {case["name"] for case in record["cases"]}
    if missing := [name for name in all_cases() if name not in there]:
        said.append(f"{len(missing)} experiments are not in this run: {', '.join(missing)}")
    return "**Provisional:** " + "; ".join(said) + ".\n\n" if said else ""


def _where(record: Record) -> str:
    machine, versions = record["machine"], record["versions"]
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    failed = [case["name"] for case in record["cases"] if not case["good"]]
    checks = sum(case["checks"] for case in record["cases"])
    wrong = sum(len(case["wrong"]) for case in record["cases"])
    commit = machine["commit"] + (" with changes" if record["changed"] else "")
    said = f"Measured on {machine['when'][:10]} at commit {commit}, size `{record['size']}`, "
    said += f"{record['seconds'] / 60:.0f} minutes, load of the machine at its end {machine['load']:.1f}: "
    said += f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
    said += f"Python {machine['python']}, {named}.\n\n"
    said += f"{checks:,} comparisons of results, of which {wrong:,} failed. "
    marks = [one for case in record["cases"] for one in case["marks"]]
    return said + (
        f"{len(marks)} marks, of which {sum(not one['holds'] for one in marks)} were not reached"
        + (f" ({', '.join(failed)})" if failed else "")
        + ".\n"
    )


def _summary(record: Record) -> str:
    """Where others are better, first."""
    lines = [
        f"- {case['figure']}, {case['title']}: {'; '.join(found)}" for case in record["cases"] if (found := worse(case))
    ]
    if not lines:
        return ""
    return "\n## Where windrow is worse\n\nBy more than a tenth, and by how much:\n\n" + "\n".join(lines) + "\n"


def _case(case: Record) -> str:
    said = [f"\n### {case['figure']}: {case['title']}\n", f"In {case['unit']}.\n", markdown(case) + "\n"]
    said.append(f"**Paper:** {case['paper_shape']}\n")
    said.append(f"**Here:** {our_shape(case)}\n")
    if case["note"]:
        said.append(f"{case['note']}\n")
    if missed := [one for one in case["marks"] if not one["holds"]]:
        said.append("Not reached: " + "; ".join(f"{one['mark']}, was {ratio(one['value'])}" for one in missed) + ".\n")
    if case["wrong"]:
        said.append("**Wrong:** " + "; ".join(case["wrong"]) + "\n")
    if case["left_out"]:
        said.append("Not measured: " + "; ".join(case["left_out"]) + ".\n")
    return "\n".join(said)
