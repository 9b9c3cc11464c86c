"""Snapshots: the files of one moment, shared by forks, carried elsewhere, unharmed by what comes after."""

from __future__ import annotations

import asyncio

from woodshed.errors import EnvironmentFault, ImageFault, SandboxDied, Unsupported
from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.model import EnvironmentSpec, Limits, SandboxPolicy
from woodshed.sandbox.conformance.kit import SPEC, Check, MemoryBlobs, by_path, captured, needs, opened, raises, shell

_START = "mkdir -p d/sub; echo one >d/one; echo two >d/two; echo s >d/sub/s; echo g >gone"
_WORK = ("echo 1 >d/one; rm d/two gone; ln -s one d/link; ln d/one hard; mkdir made; chmod 750 made; echo x >made/x;"
         " chmod 400 made/x; rm -r d/sub; mkdir d/sub; echo new >d/sub/new; head -c 100000 /dev/zero >big;"
         " touch -d @1000.5 old")
_LOOK = ("find . -exec stat -c '%n %f %s %Y' {} + | sort; find . -type l -exec readlink {} +;"
         " find . -type f -exec cksum {} + | sort")


async def look(sandbox: Sandbox) -> str:
    """Everything below the working directory: names, modes, sizes, times, targets, contents."""
    return await shell(sandbox, _LOOK)


@needs("snapshot", "fork")
async def forks_start_from_the_snapshot(engine: SandboxEngine) -> None:
    """Each fork sees the files of that moment, whatever the sandbox, and any other fork, does afterwards."""
    async with opened(engine, SPEC.model_copy(update={"setup": _START})) as sandbox:
        await shell(sandbox, _WORK)
        seen = await look(sandbox)
        snapshot = await sandbox.snapshot()
        assert await look(sandbox) == seen
        await shell(sandbox, "rm -r made; echo later >d/one; echo more >later")
        forks = await engine.fork(snapshot, 3)
        assert len({fork.id for fork in (sandbox, *forks)}) == 4
        assert [await look(fork) for fork in forks] == [seen] * 3
        await shell(forks[0], "rm -r d; echo mine >made/x; echo mine >mine")
        assert await look(forks[1]) == seen
        assert await shell(sandbox, "cat d/one") == "later\n"
        await forks[0].close()
        (late,) = await engine.fork(snapshot)
        assert await look(late) == seen
        await asyncio.gather(*(fork.close() for fork in (*forks, late)))
        await snapshot.release()
        await snapshot.release()
        await raises(EnvironmentFault, engine.fork(snapshot))


@needs("snapshot", "fork")
async def a_fork_is_like_its_origin(engine: SandboxEngine) -> None:
    """Image, environment, working directory and policy are the original's; another policy can be given."""
    spec = SPEC.model_copy(update={"workdir": "/srv/work"})
    async with opened(engine, spec, Limits(output_bytes=100)) as sandbox:
        snapshot = await sandbox.snapshot()
        fork, wide = *await engine.fork(snapshot), *await engine.fork(snapshot, policy=SandboxPolicy())
        assert fork.image_digest == sandbox.image_digest
        assert await shell(fork, "pwd; echo $GREETING") == "/srv/work\nhello\n"
        flood = "head -c 1000 /dev/zero"
        assert (await fork.exec(flood)).truncated
        assert not (await wide.exec(flood)).truncated
        for box in (fork, wide):
            await box.close()
        await snapshot.release()


@needs("snapshot", "fork")
async def changes_of_a_fork_are_since_the_image(engine: SandboxEngine) -> None:
    """A fork's changes, and those of a sandbox after snapshots, are those of one that did all the work at once."""
    spec = SPEC.model_copy(update={"setup": _START})
    second = "rm made/x; echo again >d/two; rm -r d/sub; mkdir gone; echo in >gone/in"
    async with opened(engine, spec) as straight, opened(engine, spec) as sandbox:
        await shell(straight, _WORK)
        await shell(straight, second)
        await shell(sandbox, _WORK)
        snapshot = await sandbox.snapshot()
        (fork,) = await engine.fork(snapshot)
        expected = by_path((await captured(straight))[0])
        some = ("/workspace/d", "/workspace/made/x", "/workspace/gone/in")
        expected_some = by_path((await captured(straight, *some))[0])
        for box in (sandbox, fork):
            await shell(box, second)
            assert by_path((await captured(box))[0]) == expected
            assert by_path((await captured(box, *some))[0]) == expected_some
        await fork.close()
        await snapshot.release()


@needs("snapshot", "fork")
async def what_runs_goes_on(engine: SandboxEngine) -> None:
    """A snapshot beside running commands has the files of one moment; the commands notice nothing and are not in it."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "mkdir d; echo kept >d/kept; echo shared >/tmp/outside")
        process = await sandbox.start(
            "exec 3>log; cd d; i=0; while [ ! -e ../stop ]; do i=$((i+1)); echo $i >&3; sleep 0.01; done; echo end >&3;"
            " cat kept >&3")
        await shell(sandbox, "while [ ! -s log ]; do sleep 0.01; done")
        snapshot = await sandbox.snapshot()
        (fork,) = await engine.fork(snapshot)
        then = await shell(fork, "cat log")
        await asyncio.sleep(0.05)
        assert await shell(fork, "cat log d/kept") == then + "kept\n"
        assert (await fork.exec("cat /tmp/outside")).exit_code != 0  # /tmp is no part of it
        assert await shell(sandbox, "touch stop; cat /tmp/outside") == "shared\n"
        assert await process.wait() == 0
        now = await shell(sandbox, "cat log")
        assert now.startswith(then)
        assert now.endswith("end\nkept\n")
        await fork.close()
        await snapshot.release()


@needs("snapshot", "fork")
async def snapshots_pile_up(engine: SandboxEngine) -> None:
    """A hundred and thirty snapshots of one sandbox: each keeps its moment, and forks see exactly that."""
    async with opened(engine) as sandbox:
        kept = {}
        for number in range(130):
            await sandbox.write("now", str(number).encode())
            await sandbox.write(f"d{number % 7}/f{number}", b"x")
            if number % 5 == 4:
                await shell(sandbox, f"rm d{(number - 3) % 7}/f{number - 3}")
            snapshot = await sandbox.snapshot()
            if number in (3, 64, 129):
                kept[number] = snapshot, await look(sandbox)
            else:
                await snapshot.release()
        for number, (snapshot, seen) in kept.items():
            (fork,) = await engine.fork(snapshot)
            assert await shell(fork, "cat now") == str(number)
            assert await look(fork) == seen
            await fork.close()
            await snapshot.release()


@needs("snapshot", "fork", "export")
async def exported_snapshots_are_adopted(engine: SandboxEngine) -> None:
    """Blobs and manifest make the same files again; equal digests are the same snapshot; damage is an ImageFault."""
    spec = SPEC.model_copy(update={"setup": _START})
    async with opened(engine, spec) as sandbox:
        await shell(sandbox, _WORK)
        first = await sandbox.snapshot()
        await shell(sandbox, "echo .wh. >.wh.odd; rm made/x; rm -r d; mkdir d")
        second, seen = await sandbox.snapshot(), await look(sandbox)
        blobs = MemoryBlobs()
        manifest = await second.export(blobs)
        assert manifest == await second.export(MemoryBlobs())
        assert manifest.digest == second.digest != first.digest
        assert manifest.size_bytes == sum(len(content) for content in blobs.content.values())
        for snapshot in (first, second):
            await snapshot.release()
    adopted = await engine.adopt(manifest, blobs, spec)
    assert adopted.digest == manifest.digest
    assert await adopted.export(MemoryBlobs()) == manifest
    (fork,) = await engine.fork(adopted)
    assert await look(fork) == seen
    await fork.close()
    await adopted.release()
    await raises(ImageFault, engine.adopt(manifest, blobs, EnvironmentSpec(setup="true")))
    other = manifest.model_copy(update={"layers": manifest.layers[:1]})
    await raises(ImageFault, engine.adopt(other, blobs, spec))
    blobs.content[manifest.layers[-1]] = blobs.content[manifest.layers[-1]] + b"x"
    await raises(ImageFault, engine.adopt(manifest, blobs, spec))


@needs("snapshot", "fork")
async def a_dead_sandbox_has_no_snapshot(engine: SandboxEngine) -> None:
    """snapshot() of a closed sandbox raises SandboxDied; one that was taken before outlives it."""
    async with opened(engine) as sandbox:
        await sandbox.write("f", b"x")
        snapshot = await sandbox.snapshot()
        await sandbox.close()
        await raises(SandboxDied, sandbox.snapshot())
        (fork,) = await engine.fork(snapshot)
        assert await fork.read("f") == b"x"
        await fork.close()
        await snapshot.release()


async def foreign_snapshots_are_refused(engine: SandboxEngine) -> None:
    """A snapshot of no engine, or another's, is Unsupported, and so is any where an engine has no fork."""

    class Foreign:
        id, digest = "foreign", "sha256:0"

        async def export(self, sink: object) -> object:
            raise NotImplementedError

        async def release(self) -> None:
            raise NotImplementedError

    await raises(Unsupported, engine.fork(Foreign()))  # type: ignore[arg-type]  # on purpose


CHECKS: tuple[Check, ...] = (
    forks_start_from_the_snapshot, a_fork_is_like_its_origin, changes_of_a_fork_are_since_the_image, what_runs_goes_on,
    snapshots_pile_up, exported_snapshots_are_adopted, a_dead_sandbox_has_no_snapshot, foreign_snapshots_are_refused,
)
