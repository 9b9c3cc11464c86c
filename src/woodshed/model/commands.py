"""What shell commands do, told from their words: tables of programs, and how a line falls into simple commands. Pure.

The tables cannot be complete. What is in none may edit; docs/rewards.md says what follows from that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from posixpath import basename


class Kind(Enum):
    """What a simple command does. RUN is a program whose own text must tell; SHELL has its commands in an argument."""

    READ = auto()
    CHECK = auto()
    EDIT = auto()
    SETUP = auto()
    RUN = auto()
    SHELL = auto()


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_READS = _set(
    "[ [[ ack ag alias awk basename bat cat cd cmp column comm command cut date declare df diff dirname du echo egrep "
    "env exit expand export expr false fgrep file find free gawk git grep groups head help hexdump history hostname "
    "id jq less ll local ls lscpu man md5sum mawk more nl nm nproc objdump od paste pgrep popd printenv printf "
    "ps pushd pwd read readelf readlink realpath rev rg seq set sha1sum sha256sum shasum shift shopt sleep sort source "
    "stat strings tac tail tee test time tokei top tr tree true type ulimit umask uname unalias uniq unset uptime wait "
    "wc whatis whereis which whoami xxd yes yq zcat zgrep :")
_KEYWORDS = _set("do then else elif if while until ! { ( time")
_ENDINGS = _set("for done fi esac } ) case in function select")
_WRAPPERS = _set("sudo env nice nohup time timeout stdbuf xargs command exec unbuffer ionice")
_CHECKS = _set(
    "bandit bats cc clang clang++ clang-tidy cppcheck ctest deno flake8 g++ gcc gofmt hadolint jasmine javac jest "
    "mocha mypy nosetests nox phpunit prove py.test pycodestyle pyflakes pylint pyright pytest rspec rubocop rustc "
    "shellcheck tox trial tsc unittest vitest vulture")
_WITH_WORD: Mapping[str, frozenset[str]] = {
    name: _set(words) for name, words in {
        "cargo": "test check clippy build bench nextest", "go": "test vet build", "mvn": "test verify compile package",
        "gradle": "test check build", "gradlew": "test check build", "dotnet": "test build", "rake": "test spec",
        "npm": "test t run run-script", "yarn": "test run lint build", "pnpm": "test run lint build",
        "npx": "jest vitest mocha tsc eslint ava tap", "bundle": "exec", "mix": "test", "cmake": "--build",
        "ruff": "check", "swift": "test build", "zig": "test build",
    }.items()}
_MODULES = _set(
    "bandit compileall coverage doctest flake8 mypy nose2 nox py_compile pycodestyle pyflakes pylint pyright pytest "
    "tabnanny timeit tox trial unittest vulture")
_FORMATTERS: Mapping[str, tuple[str, ...]] = {"black": ("--check", "--diff"), "isort": ("--check", "--check-only",
                                              "--diff"), "prettier": ("--check", "-c"), "rustfmt": ("--check",)}
_FIXES = frozenset(("--fix", "--fix-only", "--unsafe-fixes", "--write", "-w", "--in-place", "--add-noqa"))
_ASKS = frozenset(("--version", "--help", "-h", "-V", "--collect-only", "--co", "--markers", "--fixtures", "--list"))
_GIT_READS = _set("log diff status show blame ls-files ls-tree grep rev-parse describe shortlog cat-file")
_SETS_UP = re.compile(
    r"(?:python[\d.]* -m )?(?:pip[\d.]*|uv pip|npm|apt(?:-get)?|conda|poetry|yarn|pnpm|cargo|gem|apk) "
    r"(?:install|ci|add|update|fetch|sync)\b")
_RUNS = re.compile(r"python[\d.]*|pypy[\d.]*|node|nodejs|ruby|php|java|bun|ts-node|tsx|lua|Rscript|julia")
_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_CHECK_SCRIPT = re.compile(r"(?:^|/)(?:run_?)?(?:tests?|checks?|lint|verify)[\w.-]*$|(?:^|/)[\w.-]*_tests?\.\w+$")
_HARMLESS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/tmp/")  # noqa: S108  a place inside, named to be told apart


def kind_of(words: Sequence[str]) -> Kind:
    """What a simple command, bare and without redirections, does."""
    name, rest = basename(words[0]), list(words[1:])
    if _SETS_UP.match(f"{name} {' '.join(rest)}"):
        return Kind.SETUP
    if name in _ENDINGS or name in _READS or name == "sed":
        return Kind.READ if _only_reads(name, rest) else Kind.EDIT
    if _asked(name, rest):
        return Kind.READ
    if _is_check(name, rest):
        return Kind.EDIT if _FIXES & set(rest) else Kind.CHECK
    if name in _SHELLS and "-c" in rest[:-1]:
        return Kind.SHELL
    if runs(name) or name in _SHELLS or words[0].startswith(("./", "/")):
        return Kind.RUN
    return Kind.EDIT


def runs(name: str) -> bool:
    """True for the interpreter of a language."""
    return bool(_RUNS.fullmatch(name))


def parts(command: str) -> Iterator[list[str]]:
    """The simple commands of a line of shell, in order. Raises ValueError for quotes that do not close."""
    lexer = shlex.shlex(command.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for word in lexer:
        if word and set(word) <= set(";&|()") and word != "&>":
            if words:
                yield words
            words = []
        else:
            words.append(word)
    if words:
        yield words


def redirections(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words without redirections, and whether one writes a file of the work."""
    kept, writes, skip = list[str](), False, False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif set(word) & {"<", ">"} and set(word) <= set("<>&|"):
            target = words[index + 1] if index + 1 < len(words) else ""
            skip = True
            if kept and kept[-1].isdecimal():
                kept.pop()
            writes = writes or (">" in word and not target.startswith(_HARMLESS) and not (
                word.endswith("&") and (target.isdecimal() or target == "-")))
        else:
            kept.append(word)
    return kept, writes


def bare(words: list[str]) -> list[str]:
    """The command behind keywords, variables set for it, and programs that only run another."""
    while words:
        name = basename(words[0])
        if name in _KEYWORDS or re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
            words = words[1:]
        elif name in _WRAPPERS and len(words) > 1:
            words = words[1:]
            while words and (words[0].startswith("-") or re.fullmatch(r"[\d.]+[smhd]?", words[0])):
                words = words[1:]
        else:
            break
    return words


def _only_reads(name: str, rest: list[str]) -> bool:
    if name == "sed":
        return not any(word.startswith(("-i", "--in-place")) or re.search(r"(?:^|[;\d$/}])w ", word) for word in rest)
    if name == "find":
        return not {"-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fls", "-fprintf"} & set(rest)
    if name == "git":
        while rest and rest[0].startswith("-"):
            rest = rest[2 if rest[0] in ("-C", "-c") else 1:]
        return bool(rest) and rest[0] in _GIT_READS
    if name in ("awk", "gawk", "mawk"):
        return not any(">" in word or "system(" in word or word == "inplace" for word in rest)
    if name == "tee":
        return all(word.startswith(("-", *_HARMLESS)) for word in rest)
    if name in ("sort", "yq"):
        return not any(word.startswith(("-o", "-i", "--output", "--inplace")) for word in rest)
    return name != "source"


def _asked(name: str, rest: list[str]) -> bool:
    """True for a question about a program itself, or about which tests there are."""
    if name.startswith("pip"):
        return bool(rest) and rest[0] in ("list", "show", "freeze", "check", "index", "--version")
    return bool(_ASKS & set(rest)) and (len(rest) == 1 or "--collect-only" in rest or "--co" in rest)


def _is_check(name: str, rest: list[str]) -> bool:
    if name in _FORMATTERS:
        return bool(set(_FORMATTERS[name]) & set(rest))
    if name == "ruff" and rest[:1] == ["format"]:
        return bool({"--check", "--diff"} & set(rest))
    if name in ("make", "gmake", "ninja"):
        return not any(word in ("install", "clean", "distclean", "fix", "format", "fmt") for word in rest)
    if name == "eslint" or name in _CHECKS:
        return name != "deno" or rest[:1] in (["test"], ["check"], ["lint"])
    if name in _WITH_WORD:
        return any(word in _WITH_WORD[name] for word in rest)
    if _RUNS.fullmatch(name):
        module = rest[rest.index("-m") + 1] if "-m" in rest[:-1] else ""
        module = module.partition(".")[0]
        if module in _FORMATTERS:
            return bool(set(_FORMATTERS[module]) & set(rest))
        return module in _MODULES or (module == "ruff" and "check" in rest) or "--test" in rest or _script(rest)
    if name in _SHELLS:
        return "-n" in rest or _script(rest)
    return bool(_CHECK_SCRIPT.search(name))


def _script(rest: list[str]) -> bool:
    script = next((word for word in rest if not word.startswith("-")), "")
    return bool(script) and "-c" not in rest and "-e" not in rest and bool(_CHECK_SCRIPT.search(script))
