"""The documents tell the truth: their Python runs, and prints what they say it prints.

    ```python                 runs; the blocks of one document share a namespace, from top to bottom
    print(1 + 1)
    ```
    ```text                   directly after it (blank lines aside): what it must print, exactly
    2
    ```

    ```console                each line after $ is a command, run by the shell; what follows must be what it prints
    $ windrow version         on standard output, and of standard error the lines that begin with "windrow: "
    windrow 0.1.0
    ```
    ```sql queries.sql        a block with the name of a file is written there
    SELECT …
    ```

A block that opens with ```python spark or ```console spark needs a JVM: the document then has a second test,
marked `spark`, that runs all of its blocks, and the first one leaves those out. Any other block is only prose.
Blocks run in an empty folder.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")


@dataclass(frozen=True)
class Block:
    words: tuple[str, ...]  # of the opening fence: ("python", "spark")
    line: int  # of the opening fence, from 1
    body: str
    adjacent: bool  # nothing but blank lines since the block before it

    @property
    def is_python(self) -> bool:
        return self.words[:1] == ("python",)

    @property
    def is_console(self) -> bool:
        return self.words[:1] == ("console",)

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        return self.words[1] if len(self.words) == 2 and "." in self.words[1] else None

    @property
    def needs_spark(self) -> bool:
        return "spark" in self.words[1:]


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a Markdown text."""
    blocks: list[Block] = []
    lines = enumerate(text.splitlines(), start=1)
    adjacent = False
    for number, line in lines:
        opening = _FENCE.fullmatch(line.rstrip())
        if opening is None:
            adjacent = adjacent and not line.strip()
            continue
        body = []
        for _, inner in lines:
            closing = inner.strip()
            if closing.startswith(opening["fence"]) and set(closing) == {opening["fence"][0]}:
                break
            body.append(inner.removeprefix(opening["indent"]) + "\n")
        else:
            raise ValueError(f"line {number}: the block is never closed")
        blocks.append(Block(tuple(opening["info"].split()), number, "".join(body), adjacent))
        adjacent = True
    return blocks


def run_document(text: str, name: str, *, spark: bool = False) -> None:
    """Run a document's Python blocks in order; raises AssertionError where one prints something else."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = blocks_of(text)
    for block, following in zip(blocks, [*blocks[1:], None], strict=False):
        if block.file:
            Path(block.file).write_text(block.body, encoding="utf-8")
        if block.is_console and (spark or not block.needs_spark):
            run_session(block, name)
        if not block.is_python or (block.needs_spark and not spark):
            continue
        source = "\n" * block.line + block.body  # so that a traceback shows the document's line
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, name, "exec", dont_inherit=True), namespace)
        if following is not None and following.adjacent and following.words[:1] in {("text",), ("output",)}:
            expected = following.body.removesuffix("\n")
            actual = printed.getvalue().removesuffix("\n")
            assert actual == expected, f"{name}:{block.line} prints\n{actual}\ninstead of\n{expected}"


def run_session(block: Block, name: str) -> None:
    """Run the commands of a console, each with what it must print."""
    with tempfile.TemporaryDirectory() as folder:
        command = Path(folder) / "windrow"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m windrow "$@"\n')
        command.chmod(0o755)
        path = os.pathsep.join([folder, os.environ.get("PATH", "")])
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
        for typed, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.body, re.MULTILINE):
            done = subprocess.run(typed, shell=True, env=environment, capture_output=True, text=True, check=False)
            told = [line for line in done.stderr.splitlines() if line.startswith("windrow: ")]
            actual = "\n".join([*done.stdout.splitlines(), *told])
            wanted = expected.removesuffix("\n")
            assert actual == wanted, f"{name}:{block.line} {typed} prints\n{actual}\ninstead of\n{wanted}"


def documents() -> list[object]:
    cases: list[object] = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if not path.exists():
            continue
        name = str(path.relative_to(ROOT))
        cases.append(pytest.param(path, False, id=name))
        if any(block.needs_spark for block in blocks_of(path.read_text(encoding="utf-8"))):
            cases.append(pytest.param(path, True, id=f"{name}-spark", marks=pytest.mark.spark))
    return cases


@pytest.mark.parametrize(("path", "on_spark"), documents())
def test_document(
    path: Path, on_spark: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if on_spark:
        request.getfixturevalue("spark")  # the session that `session()` then finds
    run_document(path.read_text(encoding="utf-8"), str(path), spark=on_spark)


# --- links --------------------------------------------------------------------------------------------------


def dead_links(path: Path) -> list[str]:
    """The links of a document to files that are not there."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", path.read_text(encoding="utf-8"))
    return [link for link in links if "://" not in link and not (path.parent / link).exists()]


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert dead_links(path) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](page.md) [b](page.md#top) [c](#top) [d](https://example.org/x.md) [e](gone.md#top)")
    assert dead_links(page) == ["gone.md"]


# --- the checker itself -------------------------------------------------------------------------------------

RIGHT = """\
Some prose.

```python
x = 20
```
```python
print(x + 1)
print("two")
```

```text
21
two
```
"""


def test_right_output_passes() -> None:
    run_document(RIGHT, "right.md")
    run_document(RIGHT.replace("```text", "```output"), "right.md")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("21\n", "22\n", id="another"),
        pytest.param("two\n```", "two \n```", id="a blank more"),
        pytest.param("21\ntwo\n", "21\n", id="a line less"),
        pytest.param("21\ntwo\n", "21\ntwo\n\n", id="a line more"),
        pytest.param("21\ntwo\n", "", id="nothing"),
    ],
)
def test_wrong_output_is_caught(old: str, new: str) -> None:
    assert RIGHT.count(old) == 1
    with pytest.raises(AssertionError, match=r"^wrong\.md:6 prints"):
        run_document(RIGHT.replace(old, new), "wrong.md")


def test_an_exception_shows_the_line_of_the_document() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_document("prose\n\n```python\nx = 1\nx / 0\n```\n", "wrong.md")
    last = traceback.extract_tb(caught.tb)[-1]
    assert (last.filename, last.lineno) == ("wrong.md", 5)


def test_only_a_directly_following_text_block_is_output() -> None:
    run_document("```python\nprint(1)\n```\nprose\n```text\na drawing\n```\n", "right.md")


def test_other_blocks_do_not_run() -> None:
    run_document("```sh\nexit 1\n```\n```\n1 / 0\n```\n````text\n```python\n1 / 0\n```\n````\n", "right.md")


def test_blocks_in_lists_are_dedented() -> None:
    text = "- item\n  ```python\n  if True:\n      print(1)\n  ```\n  ```text\n  2\n  ```\n"
    run_document(text.replace("2", "1"), "right.md")
    with pytest.raises(AssertionError, match="prints"):
        run_document(text, "wrong.md")


def test_spark_blocks_run_only_where_asked() -> None:
    text = "```python spark\nraise KeyError('ran')\n```\n"
    run_document(text, "right.md")
    with pytest.raises(KeyError, match="ran"):
        run_document(text, "right.md", spark=True)


def test_consoles_are_run_and_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "```csv a.csv\nx,y\n```\n```console\n$ cat a.csv; echo 'windrow: no' >&2\nx,y\nwindrow: no\n$ true\n```\n"
    run_document(text, "right.md")
    for old, new in [("$ true", "$ echo no"), ("windrow: no\n$", "$"), ("\nx,y\nwind", "\nx,z\nwind")]:
        assert text.count(old) == 1
        with pytest.raises(AssertionError, match=r"^wrong\.md:4 "):
            run_document(text.replace(old, new), "wrong.md")


def test_an_open_block_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2: the block is never closed"):
        run_document("prose\n```python\nprint(1)\n", "wrong.md")
