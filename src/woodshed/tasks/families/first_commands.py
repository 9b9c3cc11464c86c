"""first-commands: a file to write, copy, count or mend. One command each, or a look and then a command.

What is to be typed as it stands is quoted in the instruction. In ``note`` and ``find`` it stands in a file.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from woodshed.tasks.families.family import Exercise, Family, Template

_FILES = """
notes draft plan todo report index data items orders users events errors access backup config summary readme letter
recipe budget agenda minutes songs books movies cities rivers planets colors animals fruits tools scores grades names
dates prices stock sales tickets tasks jobs logs keys terms rules facts quotes
"""
_THINGS = """
amber basil cedar delta ember fjord grove hazel ivory jasper koala lemon maple nickel olive pearl quartz raven saffron
topaz umber velvet willow xenon yarrow zephyr acorn birch coral daisy eagle fennel ginger heron indigo juniper kelp
lilac mango nutmeg onyx pepper quince robin sage thyme ursa violet walnut yellow
"""
_STEMS, _WORDS = _FILES.split(), _THINGS.split()
_ENDINGS = (".txt", ".md", ".csv", ".log", ".dat", ".cfg")


class _Names:
    """Draws names and words, none of them twice."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._stems, self._words = dice.sample(_STEMS, len(_STEMS)), dice.sample(_WORDS, len(_WORDS))

    def file(self) -> str:
        """The name of a file."""
        return self._stems.pop() + self._dice.choice(_ENDINGS)

    def folder(self) -> str:
        """The name of a folder."""
        return self._stems.pop()

    def word(self) -> str:
        """A word."""
        return self._words.pop()

    def text(self, least: int = 1, most: int = 3) -> str:
        """Lines of a word each."""
        return "".join(f"{self.word()}\n" for _ in range(self._dice.randint(least, most)))

    def beside(self) -> dict[str, str]:
        """A file or two that nobody speaks of."""
        return {self.file(): self.text() for _ in range(self._dice.randint(1, 2))}


def _ran(command: str) -> tuple[str, dict[str, str]]:
    return "bash", {"command": command}


def _read(path: str) -> tuple[str, dict[str, str]]:
    return "read_file", {"path": path}


def _wrote(path: str, content: str) -> tuple[str, dict[str, str]]:
    return "write_file", {"path": path, "content": content}


def _write(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, word = names.file(), names.word()
    return Exercise(f"Write the word `{word}` into `{file}`.", names.beside(), {file: (word,)}, f"echo {word} > {file}",
                    calls=(_wrote(file, word),))


def _copy(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, other, text = names.file(), names.file(), names.text()
    return Exercise(f"Copy `{file}` to `{other}`.", {file: text, **names.beside()}, {file: (text,), other: (text,)},
                    f"cp {file} {other}", calls=(_ran(f"cp {file} {other}"),))


def _rename(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, other, text = names.file(), names.file(), names.text()
    return Exercise(f"Rename `{file}` to `{other}`.", {file: text, **names.beside()}, {file: None, other: (text,)},
                    f"mv {file} {other}", calls=(_ran(f"mv {file} {other}"),))


def _delete(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file = names.file()
    return Exercise(f"Delete `{file}`.", {file: names.text(), **names.beside()}, {file: None}, f"rm {file}",
                    calls=(_ran(f"rm {file}"),))


def _folder(dice: random.Random) -> Exercise:
    names = _Names(dice)
    folder = names.folder()
    return Exercise(f"Make the folder `{folder}`.", names.beside(), {}, f"mkdir {folder}", (folder,),
                    (_ran(f"mkdir {folder}"),))


def _count(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, other, text = names.file(), names.file(), names.text(2, 9)
    count = text.count("\n")
    return Exercise(f"Count the lines of `{file}` and write the number into `{other}`.",
                    {file: text, **names.beside()}, {file: (text,), other: (f"{count}", f"{count} {file}")},
                    f"wc -l < {file} > {other}", calls=(_ran(f"wc -l < {file} > {other}"),))


def _replace(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, old, new = names.file(), names.word(), names.word()
    lines = [names.word() for _ in range(dice.randint(0, 2))]
    lines.insert(dice.randint(0, len(lines)), old)
    text = "".join(f"{line}\n" for line in lines)
    return Exercise(f"In `{file}`, replace `{old}` with `{new}`.", {file: text, **names.beside()},
                    {file: (text.replace(old, new),)}, f"sed -i 's/^{old}$/{new}/' {file}",
                    calls=(("edit_file", {"path": file, "old": old, "new": new}),))


def _append(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, word, text = names.file(), names.word(), names.text()
    return Exercise(f"Add a line `{word}` at the end of `{file}`.", {file: text, **names.beside()},
                    {file: (f"{text}{word}\n",)}, f"echo {word} >> {file}", calls=(_ran(f"echo {word} >> {file}"),))


def _note(dice: random.Random) -> Exercise:
    names = _Names(dice)
    note, file, word = names.file(), names.file(), names.word()
    text = f"Write the word `{word}` into `{file}`.\n"
    return Exercise(f"Read `{note}` and do what it says.", {note: text, **names.beside()},
                    {note: (text,), file: (word,)}, f"echo {word} > {file}", calls=(_read(note), _wrote(file, word)))


def _find(dice: random.Random) -> Exercise:
    names = _Names(dice)
    word, other = names.word(), names.file()
    start = {names.file(): names.text(1, 2) for _ in range(3)}
    found = dice.choice(sorted(start))
    start[found] += f"{word}\n"
    return Exercise(f"Find the file that holds `{word}` and write its name into `{other}`.", start, {other: (found,)},
                    f"found=$(grep -lx {word} *)\necho \"$found\" > {other}",
                    calls=(("search", {"pattern": word}), _wrote(other, found)))


def _sort(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, other, text = names.file(), names.file(), names.text(2, 4)
    ordered = "".join(f"{line}\n" for line in sorted(text.split()))
    return Exercise(f"Sort the lines of `{file}` and write them into `{other}`.", {file: text, **names.beside()},
                    {file: (text,), other: (ordered,)}, f"LC_ALL=C sort {file} > {other}")


def _empty(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file = names.file()
    return Exercise(f"Make `{file}`, an empty file.", names.beside(), {file: ("",)}, f"touch {file}")


def _first(dice: random.Random) -> Exercise:
    names = _Names(dice)
    file, other, text = names.file(), names.file(), names.text(2, 4)
    return Exercise(f"Write the first line of `{file}` into `{other}`.", {file: text, **names.beside()},
                    {file: (text,), other: (text.split("\n")[0],)}, f"head -n 1 {file} > {other}")


def _told(dice: random.Random) -> Exercise:
    names = _Names(dice)
    note, file, other, text = names.file(), names.file(), names.file(), names.text()
    asked = f"Copy `{file}` to `{other}`.\n"
    return Exercise(f"Read `{note}` and do what it says.", {note: asked, file: text, **names.beside()},
                    {note: (asked,), file: (text,), other: (text,)}, f"cp {file} {other}")


_TEMPLATES: Mapping[str, Template] = {
    "write": _write, "copy": _copy, "rename": _rename, "delete": _delete, "folder": _folder, "count": _count,
    "replace": _replace, "append": _append, "note": _note, "find": _find,
}
_UNSEEN: Mapping[str, Template] = {"sort": _sort, "empty": _empty, "first": _first, "told": _told}

FIRST_COMMANDS = Family("first-commands", "Files to write, copy, count, mend: a command each, or a look and a command.",
                        _TEMPLATES, _UNSEEN)
