"""Dockerfiles built in sandboxes: what each instruction does, what is cached, what is refused by name and line."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import os
import shutil
import threading
import tomllib
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import ocikit as oci
import worlds
from ocikit import E
from woodshed.dockerfile.stages import machine
from woodshed.errors import EnvironmentFault, ImageFault, UsageError, WoodshedError
from woodshed.model import EnvironmentSpec, SandboxPolicy
from woodshed.sandbox.images import Images
from woodshed.sandbox.images.container import Image
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.dockerfile import others
from woodshed.sandbox.images.dockerfile.state import Order
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.sandbox.native.ids import privileged

pytestmark = pytest.mark.skipif(not oci.has_busybox(), reason=oci.NO_BUSYBOX)


class Bench:
    """A context, and images built of it over a busybox that is called ``box``."""

    def __init__(self, place: Path) -> None:
        self.engine = NativeEngine(place / "home")
        self.images = Images(place / "home", None, Crossing(self.engine, asyncio.get_running_loop()))
        self.context, self.place = place / "context", place
        self.context.mkdir()
        self.told: list[str] = []

    def put(self, name: str, content: str | bytes = "", mode: int = 0o644) -> Path:
        path = self.context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    async def build(self, text: str, target: str | None = None, **arguments: str) -> Image:
        self.told.clear()
        file = self.place / "Dockerfile"
        file.write_text(text)
        order = Order(file, self.context, target, arguments)
        return await asyncio.to_thread(self.images.containers.build, order, "", self.told.append)

    async def said(self, text: str, command: str, target: str | None = None, **arguments: str) -> str:
        image = await self.build(text, target, **arguments)
        return await self.look(image, command)

    async def look(self, image: Image, command: str) -> str:
        box = await self.engine.create(EnvironmentSpec(image=f"id:{image.id}"), SandboxPolicy())
        try:
            done = await box.exec(command, cwd=image.config.workdir)
            return (done.stdout + done.stderr).decode()
        finally:
            await box.close()

    async def refused(self, text: str, why: str, **arguments: str) -> WoodshedError:
        with pytest.raises((UsageError, ImageFault), match=why) as caught:
            await self.build(text, **arguments)
        return caught.value


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(others, "TOOLS", ())  # what another builder would do is tried below, where it is meant
    made = Bench(tmp_path)
    image = oci.layout(tmp_path / "box", oci.busybox_layer(), inner={"Env": ["PATH=/bin", "FROM_BASE=yes"]})
    await asyncio.to_thread(made.images.containers.pull, image, "box")
    yield made
    made.images.close()
    await made.engine.close()


async def test_run_sees_variables_arguments_and_the_working_folder(bench: Bench) -> None:
    """RUN has ENV and ARG, ENV first; shell and JSON form; WORKDIR is made, relative ones lie below the last."""
    said = await bench.said("""FROM box
ARG A=1
ARG B=2
ARG C
ENV B=env A_B=$A-${B:-x} E="two words"
WORKDIR /a/b
WORKDIR c
RUN echo "$A $B ${C:-none} $A_B $FROM_BASE $E" > out; pwd >> out
RUN ["/bin/sh", "-c", "echo json $0 >> out"]
SHELL ["/bin/sh", "-ec"]
RUN echo shell >> out
""", "cat /a/b/c/out", C="given")
    assert said == "1 env given 1-2 yes two words\n/a/b/c\njson /bin/sh\nshell\n"


async def test_copy(bench: Bench) -> None:
    """Files, folders, wildcards, a new name, modes and links; missing folders are made; folders merge."""
    bench.put("one.txt", "1")
    bench.put("two.txt", "2", 0o600)
    bench.put("d/in/deep", "deep", 0o755)
    (bench.context / "d/link").symlink_to("in/deep")
    said = await bench.said("""FROM box
WORKDIR /w
COPY one.txt renamed
COPY *.txt all/
COPY d d/
COPY d/in/dee? /x/y/
COPY --chmod=0711 ["one.txt", "two.txt", "./"]
COPY one.txt /tmp
COPY d/link followed
COPY one.txt d
""", "cat renamed all/* d/in/deep d/link /x/y/deep /tmp/one.txt followed d/one.txt; "
         "stat -c '%n %a' one.txt two.txt all/two.txt d/in/deep; readlink d/link; readlink followed")
    assert said == ("112deepdeepdeep1deep1one.txt 711\ntwo.txt 711\nall/two.txt 600\nd/in/deep 755\nin/deep\n")


async def test_copy_leaves_folders_of_the_image_as_they_are(bench: Bench) -> None:
    """A folder that is copied into keeps its mode, and links to folders in the target's path are followed."""
    bench.put("f", "x")
    bench.put("d/sub/g", "y")
    (bench.context / "d/sub").chmod(0o700)
    said = await bench.said("""FROM box
RUN mkdir -m 1777 /t && mkdir -m 711 -p /t/sub && ln -s /t /way
COPY f /way/
COPY d /t
""", "stat -c '%n %a' /t /t/sub /t/f; cat /t/sub/g; readlink /way")
    assert said == "/t 1777\n/t/sub 711\n/t/f 644\ny/t\n"


@pytest.mark.skipif(not privileged(), reason="needs root: an ordinary user's sandboxes have one user alone")
async def test_owners(bench: Bench) -> None:
    """--chown takes names and numbers of the image; USER and what RUN does as it; root's again afterwards."""
    bench.put("f", "x")
    said = await bench.said("""FROM box
COPY --chown=app f /a/app
COPY --chown=app:staff f /b
COPY --chown=7 f /c
COPY --chown=7:8 f /d
RUN mkdir -m 777 /open
USER app
RUN touch /open/mine; id -u > /open/me
USER 0
RUN touch /open/roots
""", "stat -c '%n %u %g' /a /a/app /b /c /d /open/mine /open/roots; cat /open/me")
    assert said == ("/a 1000 1000\n/a/app 1000 1000\n/b 1000 50\n/c 7 7\n/d 7 8\n/open/mine 1000 1000\n"
                    "/open/roots 0 0\n1000\n")


@pytest.mark.skipif(not privileged(), reason="needs root: an ordinary user's sandbox has one user")
async def test_run_has_the_groups_of_its_user(bench: Bench) -> None:
    """RUN is in the user's own groups, primary and supplementary, and at home where it is; a group given is alone."""
    bench.put("f")
    said = await bench.said("""FROM box
RUN echo 'dev:x:1234:60::/home/dev:/bin/sh' >> /etc/passwd && echo 'dev:x:60:' >> /etc/group \\
  && echo 'media:x:44:app,dev' >> /etc/group && mkdir -m 777 /open
USER dev
RUN (id -u; id -g; id -G; echo $HOME $USER) > /open/one; touch /open/own
USER dev:staff
RUN (id -u; id -g; id -G) > /open/two
USER 77
RUN (id -u; id -g; id -G; echo $HOME) > /open/three
USER root
COPY --chown=dev f /open/copied
RUN stat -c '%u:%g' /open/own /open/copied > /open/four
""", "cat /open/one /open/two /open/three /open/four")
    assert said == ("1234\n60\n60 44\n/home/dev dev\n1234\n50\n50\n77\n0\n0\n/\n1234:60\n1234:60\n")


async def test_owners_nobody_has(bench: Bench) -> None:
    """A user or group that the image does not have is refused with the line."""
    bench.put("f")
    for line in ("COPY --chown=nobody-here f /", "COPY --chown=app:nope f /", "USER nobody-here\nRUN true"):
        fault = await bench.refused(f"FROM box\n{line}", "has no (user|group)")
        assert "line " in str(fault)


async def test_package_managers_change_owners(bench: Bench) -> None:
    """A command that insists on changing owners succeeds, also where there is one user alone."""
    said = await bench.said("FROM box\nRUN touch /f && chown app:staff /f && echo done > /ok\n", "cat /ok")
    assert said == "done\n"


async def test_stages(bench: Bench) -> None:
    """Stages by name and number, a base of an earlier one, copying between them; those not needed are not built."""
    text = """FROM box AS one
RUN echo one > /made; mkdir -p /many; touch /many/a.x /many/b.x /many/c.y; ln -s /made /link
FROM scratch AS empty
COPY --from=one /made /
FROM one AS two
RUN cat /made > /two; echo two >> /two
FROM box AS broken
RUN false
FROM box
COPY --from=one /made /link /from/
COPY --from=1 / /whole/
COPY --from=two /two /renamed
COPY --from=0 --chmod=600 /many/*.x /x/
COPY --from=box /etc/group /g
"""
    said = await bench.said(text, "cat /from/made /from/link /whole/made /renamed; ls /x; head -1 /g; "
                                  "stat -c %a /x/a.x; ls /whole/dev /whole/proc 2>&1 | grep -c .")
    assert said == "one\none\none\none\ntwo\na.x\nb.x\nroot:x:0:\n600\n2\n"
    assert not any("false" in line for line in bench.told)
    assert await bench.said(text, "cat /two", target="two") == "one\ntwo\n"
    await bench.refused(text.replace("--from=1 ", "--from=9 "), "no stage 9")
    with pytest.raises(ImageFault, match="line 8: RUN: the command exited 1"):
        await bench.build(text, target="broken")


async def test_documents(bench: Bench) -> None:
    """RUN's whole script, with and without an interpreter of its own, a shell's document, and files of COPY."""
    said = await bench.said("""FROM box
ENV V=val
RUN <<EOF
set -e
echo script $V > /a
cat > /b <<INNER
inner $V
INNER
EOF
RUN <<EOF
#!/bin/cat
its own $V
EOF
RUN cat <<X > /c && cat /c
c $V
X
COPY <<one <<"two" /files/
one $V "quoted" \\$V
one
two $V
two
COPY <<named /named.txt
n
named
""", "cat /a /b /c /files/one /files/two /named.txt")
    assert said == 'script val\ninner val\nc val\none val "quoted" $V\ntwo $V\nn\n'


async def test_nothing_is_done_twice(bench: Bench) -> None:
    """Steps are done again only from the first that changed; neither times nor labels count."""
    bench.put("f", "1")
    text = "FROM box\nRUN cat /proc/uptime > /t\nCOPY f /f\nRUN cat /proc/uptime > /u\n"
    first = await bench.build(text)
    os.utime(bench.context / "f", (5, 5))
    assert await bench.build(text + "LABEL a=b\nCMD x\n") != first
    assert (await bench.build(text)).layers == first.layers
    bench.put("f", "2")
    second = await bench.build(text)
    assert second.layers[2:] == first.layers[2:]
    assert not set(second.layers[:2]) & set(first.layers[:2])
    bench.put("f", "1")
    assert await bench.build(text) == first
    assert (await bench.build(text, X="1")).layers == first.layers  # an argument that no step uses
    third = await bench.build("FROM box\nARG X\n" + text.partition("\n")[2], X="1")
    assert third.layers[0] != first.layers[0]


async def test_the_second_time_needs_no_sandbox(bench: Bench) -> None:
    """Everything that is cached is found without any sandbox."""
    bench.put("f", "1")
    text = "FROM box\nCOPY f /f\nRUN true\nWORKDIR /new\nFROM box\nCOPY --from=0 /f /f\n"
    first = await bench.build(text)
    bench.images.containers.crossing = None
    assert await bench.build(text) == first
    with pytest.raises(EnvironmentFault, match="no sandbox"):
        await bench.build(text + "RUN true\n")


async def test_dockerignore(bench: Bench) -> None:
    """What .dockerignore leaves out is not there, what it keeps again is; a file beside the Dockerfile goes first."""
    for name in ("keep", "a.log", "d/b.log", "d/keep", "d/keep.log", "skip/x"):
        bench.put(name, name)
    bench.put(".dockerignore", "**/*.log\n!d/keep.log\nskip\n.dockerignore\n")
    assert await bench.said("FROM box\nCOPY . /c\n", "cd /c && find . -type f | sort") == (
        "./d/keep\n./d/keep.log\n./keep\n")
    await bench.refused("FROM box\nCOPY skip /c\n", "not in the context")
    (bench.place / "Dockerfile.dockerignore").write_text("*\n!keep\n")
    assert await bench.said("FROM box\nCOPY . /c\n", "cd /c && find . -type f") == "./keep\n"


async def test_add_unpacks_archives(bench: Bench) -> None:
    """ADD unpacks a tar in each compression, and copies what is none."""
    tar = oci.layer(oci.directory("in"), E("in/f", content=b"packed", mode=0o711))
    packers: dict[str, Callable[[bytes], bytes]] = {
        "a.tar": bytes, "b.tgz": gzip.compress, "c.tbz": bz2.compress, "d.xz": lzma.compress}
    for name, pack in packers.items():
        bench.put(name, pack(tar))
    bench.put("plain.gz", gzip.compress(b"no tar" * 200))
    text = "FROM box\n" + "".join(f"ADD {name} /{name[0]}/\n" for name in packers)
    said = await bench.said(f"{text}ADD plain.gz /p\nCOPY a.tar /copied.tar\n",
                            "cat /a/in/f /b/in/f /c/in/f /d/in/f; stat -c %a /a/in/f; ls /p /copied.tar")
    assert said == "packed" * 4 + "711\n/copied.tar\n/p\n"


async def test_mounts_of_run(bench: Bench) -> None:
    """What is bound is there while the command runs and not afterwards; a cache is a folder."""
    bench.put("req.txt", "content")
    bench.put("src/a", "a")
    said = await bench.said("""FROM box AS other
RUN echo tool > /tool
FROM box
WORKDIR /w
RUN --mount=type=bind,source=req.txt,target=req.txt --mount=type=bind,from=other,source=/tool,target=/t/tool \\
    --mount=source=src,target=/s --mount=type=cache,target=/cache --network=none \\
    cat req.txt /t/tool /s/a > made && mkdir -p /cache && echo x > /cache/x
""", "cat made; ls /w; ls /s 2>&1; ls /t/tool 2>&1")
    assert said.startswith("contenttool\namade\n")
    assert said.count("No such file") == 2


async def test_what_the_configuration_keeps(bench: Bench) -> None:
    """Entry point, command, user, labels and what means nothing here."""
    image = await bench.build("""FROM box
LABEL a="b c" d=e
EXPOSE 80
VOLUME /data
STOPSIGNAL SIGTERM
HEALTHCHECK CMD true
MAINTAINER me
CMD ["base"]
ENTRYPOINT run it
USER app:staff
""")
    config = image.config
    assert config.entrypoint == ("/bin/sh", "-c", "run it")
    assert config.cmd == ("base",)
    assert (config.user, config.labels, config.env["FROM_BASE"]) == ("app:staff", {"a": "b c", "d": "e"}, "yes")


async def test_tmp_and_run_stay(bench: Bench) -> None:
    """What a step leaves in /tmp and /run is there for the next, and at the end."""
    bench.put("f", "1")
    said = await bench.said("FROM box\nCOPY f /tmp/f\nRUN cp /tmp/f /tmp/g && mkdir -p /run && echo r > /run/r\n"
                            "RUN cat /tmp/g /run/r > /both\n", "cat /both /tmp/f")
    assert said == "1r\n1"


@pytest.mark.parametrize(("line", "why"), [
    ("COPY nothing /", "'nothing' is not in the context"), ("COPY *.zip /", "not in the context"),
    ("COPY f g /x", "End the target"), ("COPY f", "needs a source and a target"),
    ("COPY --exclude=x f /", "--exclude is not supported"), ("COPY --chmod=u+x f /", "no octal mode"),
    ("ADD https://example.org/x /", "fetches nothing"), ("ADD git@github.com:a/b /", "fetches nothing"),
    ("ONBUILD RUN x", "ONBUILD"), ("RUN --mount=type=secret,id=x true", "no secret"),
    ("RUN --network=host true", "--network=host"), ("RUN --security=insecure true", "insecure"),
    ("RUN --what=x true", "--what"), ("RUN []", "names no command"), ("SHELL /bin/sh", "JSON list"),
    ("ENV a", "no value"), ("ENV a=b c", "NAME=value"), ("LABEL =", "NAME=value"), ("COPY f[ /", "bracket"),
    ("RUN exit 3", "exited 3"), ("RUN no-such-program", "exited 127"), ("COPY f /bin/busybox/x", "cannot be copied"),
    ("COPY --from=Nowhere f /", "line 3"), ("COPY f /f\nCOPY f /f/", "cannot be copied|in its way"),
    ("ENV x=${y%%z}", "no expansion"), ("RUN --mount=type=bind true", "needs a target"),
])
async def test_refusals_have_a_line(bench: Bench, line: str, why: str) -> None:
    """Each is told with file, line and what is to be done."""
    bench.put("f", "x")
    bench.put("g", "x")
    with pytest.raises(WoodshedError, match=why) as caught:
        await bench.build(f"FROM box\n# a comment\n{line}\n")
    assert "Dockerfile: line " in str(caught.value)


async def test_a_failing_command_tells_its_end(bench: Bench) -> None:
    """What a command said last is in the failure; nothing of it is kept."""
    await bench.build("FROM box\nRUN true\n")
    before = set(bench.images.layers.sizes())
    with pytest.raises(ImageFault, match="the last words"):
        await bench.build("FROM box\nRUN echo first; echo the last words >&2; exit 1\n")
    assert set(bench.images.layers.sizes()) == before


async def test_no_network_for_run(bench: Bench) -> None:
    """RUN reaches no network unless a policy lets it."""
    said = await bench.said("FROM box\nRUN grep -c : /proc/net/dev > /dev.txt\n", "cat /dev.txt")
    assert said == "1\n"


async def test_a_policy_binds_what_run_runs(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting's policy holds in the commands of Dockerfiles, and another one makes other layers."""
    text = "FROM box\nENV V=image\nRUN echo $V > /v; touch /etc/x || echo held >> /v\n"
    (bench.place / "Dockerfile").write_text(text)
    name, policy = f"dockerfile:{bench.place / 'Dockerfile'}", tmp_path / "policy.toml"
    free = await asyncio.to_thread(bench.images.containers.get, name)
    policy.write_text('env = { V = "policy" }\ndirectories = [{ path = "/etc", access = "read" }]\n')
    monkeypatch.setenv("WOODSHED_BUILD_POLICY", str(policy))
    bound = await asyncio.to_thread(bench.images.containers.get, name)
    assert await bench.look(free, "cat /v") == "image\n"
    assert await bench.look(bound, "cat /v") == "policy\nheld\n"
    monkeypatch.setenv("WOODSHED_BUILD_POLICY", str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="no policy"):
        await asyncio.to_thread(bench.images.containers.get, name)


async def test_a_policy_lets_run_fetch(bench: Bench) -> None:
    """RUN reaches the hosts of its policy by their names, where the policy says; what it may not is told."""
    class Mirror(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return None

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"hello\n")

    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        policy = SandboxPolicy.parse({"network": {"rules": [
            {"host": "mirror.example", "ports": [80], "address": f"127.0.0.1:{server.server_address[1]}"},
            {"host": "mirror.invalid", "ports": [80]}]}}, file=Path("policy.toml"))
        file = bench.place / "Dockerfile"

        async def build(host: str) -> Image:
            file.write_text(f"FROM box\nRUN busybox wget -q -O /got http://{host}/x\n")
            order = Order(file, bench.context, policy=policy)
            return await asyncio.to_thread(bench.images.containers.build, order)

        assert await bench.look(await build("mirror.example"), "cat /got") == "hello\n"
        with pytest.raises(ImageFault, match=r"line 2.*network: mirror\.invalid failed: the name is not known"):
            await build("mirror.invalid")
        with pytest.raises(ImageFault, match=r"line 2.*other\.example refused"):
            await build("other.example")
        server.shutdown()


def test_the_documents_build_policy_is_one() -> None:
    """The example in the documents names the hosts that the test of a real build fetches from."""
    page = (Path(__file__).parents[2] / "docs/images.md").read_text()
    text = page.partition("This one lets")[2].partition("```toml\n")[2].partition("```")[0]
    policy = SandboxPolicy.parse(tomllib.loads(text), file=Path("docs/images.md"))
    assert [rule.host for rule in policy.network.rules] == [worlds.DEBIAN, *worlds.PYPI]


async def test_another_platform_is_refused(bench: Bench) -> None:
    """A stage of another machine is not built here; of ours it is."""
    await bench.refused("FROM --platform=linux/s390x box\n", "another machine")
    assert await bench.said("FROM --platform=$TARGETPLATFORM box\nARG TARGETARCH\nRUN echo $TARGETARCH > /a\n",
                            "cat /a") == f"{machine()}\n"


async def test_files_that_no_context_may_hold(bench: Bench) -> None:
    """A FIFO in what is copied is refused, and hangs nothing."""
    os.mkfifo(bench.context / "pipe")
    await bench.refused("FROM box\nCOPY . /c\n", "only files, folders and links")


async def test_several_builders_at_once(bench: Bench) -> None:
    """Three builds of one Dockerfile do its steps once."""
    text = "FROM box\nRUN sleep 0.2; cat /proc/uptime > /t\n"
    (bench.place / "Dockerfile").write_text(text)
    orders = [Order(bench.place / "Dockerfile", bench.context) for _ in range(3)]
    made = await asyncio.gather(*(asyncio.to_thread(bench.images.containers.build, order) for order in orders))
    assert made[0] == made[1] == made[2]


@pytest.mark.skipif(shutil.which("podman") is None, reason="needs podman (apt-get install podman)")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: podman of an ordinary user needs subordinate ids")
@pytest.mark.slow
async def test_another_builder_takes_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not built here is built by podman where it is installed; its image is unpacked as others are."""
    monkeypatch.setattr(others, "TOOLS", ("podman",))
    bench.put("f", "by another")
    image = await bench.build("FROM scratch\nCOPY f /f\nONBUILD RUN x\n")
    layer = bench.images.layers.path(image.layers[0])
    assert (layer / "f").read_text() == "by another"
    assert any("podman" in line for line in bench.told)


async def test_without_another_builder_the_remedy_names_some(bench: Bench) -> None:
    """The refusal says what could be installed."""
    await bench.refused("FROM box\nONBUILD RUN x\n", "Or install buildah")


async def test_no_other_builder_gets_a_build_that_a_policy_binds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder that could not hold the build to its policy is not asked, and the refusal names it."""
    monkeypatch.setattr(others, "TOOLS", ("sh",))  # installed everywhere; whether it could build is not the question
    file = bench.place / "Dockerfile"
    file.write_text("FROM box\nONBUILD RUN x\n")
    bound = Order(file, bench.context, policy=SandboxPolicy(privileges="none"))
    with pytest.raises(UsageError, match="sh could build it, and cannot hold it to the policy"):
        await asyncio.to_thread(bench.images.containers.build, bound)
