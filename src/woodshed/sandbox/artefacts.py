"""Files that a tool of the host would run, or run something for, by itself: named when changes are captured.

A change set is harmless as long as it is data. It stops being that where someone checks it out and opens the folder in
an editor, or types ``git status``. So these files are flagged, never dropped: a person, or a rule, decides. Names are
compared as the least careful file system would: without case, without what HFS+ ignores, without what NTFS cuts off.
Contents are read, up to a megabyte, and never run. The table with its sources stands in ``docs/artefacts.md``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LARGEST = 1 << 20
"""Bytes of a file that is looked into; a larger one is flagged for its name."""

Inspect = Callable[[str], str | None]
"""What in a content makes it run something, or None."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which paths, and why. Without ``inspect`` the name is enough.

    ``pattern`` is of the last parts of a path, four at most, and within the directory ``within`` if there is one; or
    the file lies anywhere ``under`` a directory. So a path of four thousand bytes costs no more than a short one.
    """

    pattern: str
    reason: str
    inspect: Inspect | None = None
    within: str = ""
    under: tuple[str, ...] = ()

    def why(self, content: bytes | None) -> str | None:
        """The reason to flag a file of this ``content``; None for a content means that it is too large to be read."""
        if self.inspect is None:
            return self.reason
        if content is None:
            return f"{self.reason} (too large to be looked into)"
        found = self.inspect(content.decode("utf-8", "replace"))
        return f"{self.reason}: {found}" if found else None


# -- contents ----------------------------------------------------------------------------------------------------------

_SECTION = re.compile(r'\s*\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]\s*', re.DOTALL)
_ASSIGNED = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:=\s*(.*))?")
# git-config(1): the variables whose value is a command, a program, or more configuration. ``*`` is any subsection.
_GIT_KEYS = frozenset("""
    core.fsmonitor core.hookspath core.sshcommand core.pager core.editor core.askpass core.gitproxy core.worktree
    core.alternaterefscommand sequence.editor diff.external diff.*.command diff.*.textconv filter.*.clean
    filter.*.smudge filter.*.process merge.*.driver mergetool.*.cmd mergetool.*.path difftool.*.cmd difftool.*.path
    credential.helper credential.*.helper gpg.program gpg.*.program gpg.ssh.defaultkeycommand include.path
    includeif.*.path interactive.difffilter init.templatedir man.*.cmd man.*.path browser.*.cmd browser.*.path
    guitool.*.cmd trailer.*.command trailer.*.cmd hook.*.command sendemail.sendmailcmd sendemail.tocmd sendemail.cccmd
    sendemail.headercmd uploadpack.packobjectshook remote.*.uploadpack remote.*.receivepack remote.*.vcs
    submodule.*.update protocol.ext.allow svn-remote.*.url
""".split())  # noqa: SIM905 (a table of words)
_BOOLEAN = frozenset(("", "true", "false", "yes", "no", "on", "off", "0", "1"))


def _git(text: str) -> str | None:
    """The first variable of a git configuration that makes git run something. Lines end at a newline alone."""
    section = subsection = ""
    for line in re.sub(r"\\\r?\n", "", text.lstrip("\ufeff")).split("\n"):
        at = 0
        while header := _SECTION.match(line, at):  # several may stand on one line
            section, _, dotted = header[1].lower().partition(".")
            subsection, at = header[2] or dotted, header.end()
        if not section or not (assigned := _ASSIGNED.match(line, at)):
            continue
        name = f"{section}.{'*.' if subsection else ''}{assigned[1].lower()}"
        if _runs(section, name, (assigned[2] or "").replace('"', "").strip()):
            return f"{section}.{subsection + '.' if subsection else ''}{assigned[1]}"
    return None


def _runs(section: str, name: str, value: str) -> bool:
    if name == "core.fsmonitor":
        return value.lower() not in _BOOLEAN
    if name == "submodule.*.update":
        return value.startswith("!")
    if section == "alias":
        return value.startswith("!")
    if section == "pager":
        return value.lower() not in _BOOLEAN
    if name in ("remote.*.url", "remote.*.pushurl", "submodule.*.url", "url.*.insteadof"):
        return value.startswith(("ext::", "-"))
    if section == "url":
        return False
    return name in _GIT_KEYS


def _gitfile(text: str) -> str | None:
    return "it leads git elsewhere" if text.lstrip().startswith("gitdir:") else None


def _lines(*keys: str) -> Inspect:
    """An inspector of ``key = value`` or ``key: value`` lines."""
    named = "|".join(map(re.escape, keys))
    pattern = re.compile(rf"""^[ \t]*["']?({named})["']?[ \t]*[:= \t]""", re.MULTILINE | re.IGNORECASE)

    def inspect(text: str) -> str | None:
        found = pattern.search(text)
        return found[1] if found else None

    return inspect


def _pth(text: str) -> str | None:
    return "an import line" if re.search(r"^import[ \t]", text, re.MULTILINE) else None


# -- the table ---------------------------------------------------------------------------------------------------------

RULES = (
    Rule(r"hooks/[^/]+(?<!\.sample)", "git runs it as a hook", within=".git"),
    Rule(r"config(\.worktree)?|\.gitconfig", "git configuration that runs something", _git),
    Rule(r"\.gitmodules", "git submodule that runs something", _git),
    Rule(r"\.git", "a file in the place of a repository", _gitfile),
    Rule(r"commondir", "leads git to another repository", within=".git"),
    Rule(r"\.?lefthook(-local)?\.ya?ml|\.pre-commit-config\.yaml",
         "run at a commit where hooks are installed", under=(".husky",)),
    Rule(r"\.vscode/(tasks|settings|launch|mcp)\.json|[^/]+\.code-workspace",
         "an editor's tasks and programs (VS Code)"),
    Rule(r"\.zed/(tasks|settings|debug)\.json", "an editor's tasks and programs (Zed)"),
    Rule(r"\.idea/(workspace|watchertasks|startup|externaltools|misc)\.xml|\.run/[^/]+\.run\.xml",
         "an editor's run configurations and file watchers (JetBrains)", under=(".idea/runconfigurations",)),
    Rule(r"\.devcontainer\.json", "run where a development container is opened", under=(".devcontainer",)),
    Rule(r"\.(exrc|vimrc|gvimrc|nvimrc|nvim\.lua|lvimrc)|\.dir-locals(-2)?\.el",
         "an editor's local commands (Vim, Emacs)"),
    Rule(r"\.envrc|\.?mise(\.local)?\.toml", "run on entering the folder (direnv, mise)", under=(".config/mise",)),
    Rule(r"\.(bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|zlogin|zlogout|kshrc)",
         "run at the start of a shell", under=(".config/fish",)),
    Rule(r"\.ssh/(rc|config|authorized_keys|environment)", "read by ssh: commands and keys"),
    Rule(r"", "started at login", under=(".config/autostart", ".config/systemd")),
    Rule(r"\.mcp\.json|\.(cursor|claude|gemini|codex|roo|kiro)/([^/]+/)?(mcp|hooks|settings|settings\.local|config)"
         r"\.(json|toml)", "an agent's servers and hooks", under=(".claude/hooks",)),
    Rule(r"(site|dist)-packages/[^/]+\.pth", "run at the start of every Python", _pth),
    Rule(r"(sitecustomize|usercustomize)\.py|\.pdbrc", "run at the start of every Python, or of its debugger"),
    Rule(r"\.npmrc", "npm configuration that runs something",
         _lines("script-shell", "node-options", "git", "shell", "editor", "viewer", "browser", "init-module",
                "globalconfig", "userconfig", "onload-script")),
    Rule(r"\.yarnrc|\.yarnrc\.yml", "yarn configuration that runs something",
         _lines("yarn-path", "yarnPath", "plugins", "yarn-offline-mirror-script", "unsafeHttpWhitelist")),
    Rule(r"\.?pnpmfile\.c?js", "run by yarn or pnpm at every install", under=(".yarn/releases", ".yarn/plugins")),
    Rule(r"\.cargo/config(\.toml)?", "cargo configuration: wrappers, linkers, runners"),
    Rule(r"\.mvn/(extensions\.xml|jvm\.config|maven\.config)",
         "read by Maven: extensions and a JVM's agents", under=(".mvn/wrapper",)),
    Rule(r"\.bazelrc", "read by Bazel: commands of its own"),
    Rule(r"\.gdbinit|\.lldbinit|\.rprofile|\.irbrc|\.pryrc", "run at the start of a debugger or an interpreter"),
)
_HOLDERS = frozenset((
    ".git", ".husky", ".vscode", ".zed", ".idea", ".run", ".devcontainer", ".ssh", ".cursor", ".claude", ".cargo",
    ".mvn", ".yarn", ".gemini", ".codex", "hooks",
))
"""Directories whose place a link can take: what it leads to is then what is run."""
_BARE = frozenset((
    "config", "config.worktree", "sitecustomize.py", "usercustomize.py", "lefthook.yml", "lefthook.yaml",
    "lefthook-local.yml", "lefthook-local.yaml", "mise.toml", "mise.local.toml", "pnpmfile.js", "pnpmfile.cjs",
))
"""Last parts, without a leading dot, that a rule knows; all else that is flagged has a dot at the start of a part."""
_SUFFIXES = (".pth", ".code-workspace")

_PARTS = 4
_COMPILED = [(re.compile(rf"(?:.*/)?(?:{rule.pattern})", re.DOTALL), rule) for rule in RULES]
# git's utf8.c, next_hfs_char(): code points that HFS+ leaves out of a name when it compares.
_IGNORED = dict.fromkeys((
    *range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF,
))
_SHORT_GIT = re.compile(r"git~[0-9]")
_ODD = re.compile(r"[^\x20-\x7e]|[~:]|[ .](?:/|$)")


def reason(path: str, content: bytes | None) -> str | None:
    """Why a file at ``path`` (absolute) is flagged; ``content`` is None where it is too large to be looked into."""
    return judged(rules_of(path), content)


def judged(rules: Sequence[Rule], content: bytes | None) -> str | None:
    """Why a file of this ``content`` is flagged, of ``rules`` that its name falls under."""
    if content is not None and len(content) > LARGEST:
        content = None
    return next((why for rule in rules if (why := rule.why(content)) is not None), None)


def rules_of(path: str) -> list[Rule]:
    """The rules that a file at ``path`` falls under by its name. Most files: none, after a glance."""
    lowered = path.lower()
    if _ODD.search(lowered):
        lowered = fold(path)
    if "/." not in lowered and lowered.rpartition("/")[2] not in _BARE and not lowered.endswith(_SUFFIXES):
        return []
    tail = "/".join(lowered.rsplit("/", _PARTS)[-_PARTS:])
    return [rule for pattern, rule in _COMPILED
            if (pattern.fullmatch(tail) and (not rule.within or f"/{rule.within}/" in lowered))
            or any(f"/{place}/" in lowered for place in rule.under)]


def link_reason(path: str) -> str | None:
    """Why a link at ``path`` is flagged: it stands where a tool looks for something to run."""
    folded = fold(path)
    name = folded.rpartition("/")[2]
    if name in _HOLDERS and (name != "hooks" or "/.git/" in folded):
        return "a link in the place of what a tool of the host runs"
    return next((f"a link in the place of a file: {rule.reason}" for rule in rules_of(path)
                 if rule.inspect is None or "/." in folded), None)


def fold(path: str) -> str:
    """``path`` as the least careful of file systems sees it (HFS+, APFS, NTFS)."""
    return "/".join(_fold(part) for part in path.split("/"))


def _fold(part: str) -> str:
    plain = unicodedata.normalize("NFD", part).translate(_IGNORED).casefold()
    # NTFS: a stream's name after a colon, and dots and spaces at the end, are not the name; git~1 is .git's short one.
    plain = plain.partition(":")[0].rstrip(" .") or part
    return ".git" if _SHORT_GIT.fullmatch(plain) else plain
