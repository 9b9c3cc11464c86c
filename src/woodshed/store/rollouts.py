"""Requests of rollouts, the policies that they are held against, and deliveries across requests. Their SQL is here.

A request is a shared run with a row in ``rollout_requests``. A policy's versions have ranks: a number is its own, a
name has the next one after those announced before. A request whose rank is further behind the current one than it
allows becomes ``stale`` in the transaction that announces the current one: nothing of it is handed out from then on.
What a consumer has by then stays its own, for as long as its lease runs.

A request is ``over`` when nothing of it will ever be handed out any more; who looks for groups then passes it by.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from woodshed.errors import Conflict
from woodshed.model import EventKind, Record, RunState
from woodshed.model.delivery import Count, OnStale
from woodshed.model.event import now
from woodshed.store import rows
from woodshed.store.clock import seconds
from woodshed.store.groups import Group, GroupState, free, group, leased
from woodshed.store.tables import attempt_groups as groups
from woodshed.store.tables import attempts, events, policies, queued, runs, submissions
from woodshed.store.tables import rollout_requests as requests
from woodshed.store.text import stamp

Writing = Callable[[str], AbstractContextManager[sa.Connection]]
Version = int | str


class Request(Record):
    """A request of rollouts. ``digest`` is of what was asked, to know it again; ``key`` makes it one request."""

    run: str
    project: str = "default"
    key: str | None = None
    digest: str
    endpoint: str | None = None
    version: Version | None = None
    rank: int | None = None
    max_staleness: int | None = None
    on_stale: OnStale = OnStale.KEEP
    stale_at: datetime | None = None
    over_at: datetime | None = None
    created_at: datetime


class Policy(Record):
    """A version of an endpoint's policy."""

    endpoint: str
    version: Version
    rank: int


class Counted(NamedTuple):
    """A request's groups, and its attempts: all, and those that are done."""

    groups: Count
    attempts: int
    done: int


class Rollouts:
    """See the module. Every method is synchronous, short and one transaction; it raises StoreFault like the store."""

    def __init__(self, engine: sa.Engine, writing: Writing, reading: Writing) -> None:
        self._write, self._read = writing, reading
        self._server = engine.dialect.name == "postgresql"

    # -- requests ------------------------------------------------------------------------------------------------------

    def admit(self, connection: sa.Connection, request: Request) -> None:
        """Write the request's row, in the transaction that writes its run. Raises Conflict for a policy that is no

        version of its endpoint's, or is too old already.
        """
        rank, endpoint, version = request.rank, request.endpoint, request.version
        if endpoint is not None and version is not None:
            current = _current(connection, request.project, endpoint, alone=self._server)
            rank = _rank(connection, request.project, endpoint, version, current)
            if request.max_staleness is not None and current is not None \
                    and rank < current.rank - request.max_staleness:
                raise Conflict(f"version {version} is {current.rank - rank} behind the current one, "
                               f"{current.version}", field="policy_version", remedy="Ask with a newer one.")
        row = request.to_json() | {"rank": rank, "created_at": stamp(request.created_at),
                                   "version": None if request.version is None else json.dumps(request.version)}
        connection.execute(sa.insert(requests), row)

    def find(self, project: str, key: str) -> Request | None:
        """The request of this idempotency key, or None."""
        return self._one(sa.and_(requests.c.project == project, requests.c.key == key))

    def request(self, run_id: str) -> Request | None:
        """The request that this run is of, or None."""
        return self._one(requests.c.run == run_id)

    def listing(self, project: str, most: int, before: str | None = None) -> list[Request]:
        """The newest requests first; those that came before the one named."""
        query = sa.select(requests).where(requests.c.project == project).order_by(
            requests.c.created_at.desc(), requests.c.run.desc())
        if before is not None:
            then = sa.select(requests.c.created_at).where(requests.c.run == before).scalar_subquery()
            query = query.where(sa.or_(requests.c.created_at < then, sa.and_(requests.c.created_at == then,
                                                                             requests.c.run < before)))
        with self._read("reading requests") as connection:
            return [_request(row) for row in connection.execute(query.limit(most)).mappings()]

    def standing(self, run_id: str) -> list[tuple[str, str, int]]:
        """Id, state and executions of each attempt of a run, in planned order."""
        query = (sa.select(attempts.c.id, attempts.c.state, attempts.c.executions)
                 .where(attempts.c.run == run_id).order_by(attempts.c.number))
        with self._read("reading attempts") as connection:
            return [(one.id, one.state, one.executions) for one in connection.execute(query)]

    def counts(self, run_ids: Sequence[str]) -> dict[str, Counted]:
        """Of each of these requests: its groups by what became of them, its attempts, and how many are done."""
        query = sa.select(groups, requests.c.stale_at).join(requests, requests.c.run == groups.c.run).where(
            groups.c.run.in_(run_ids))
        found = {run: Counter[str]() for run in run_ids}
        with self._read("reading groups") as connection:
            at = seconds(connection)
            for row in connection.execute(query).mappings():
                count = found[row["run"]]
                count[_standing(group(row, at).state, stale=row["stale_at"] is not None)] += 1
                count["total"] += row["total"]
                count["open"] += row["open"]
        return {run: Counted(Count(**{name: count[name] for name in Count.model_fields}), count["total"],
                             count["total"] - count["open"]) for run, count in found.items()}

    def stages(self, running: Mapping[str, int]) -> dict[str, str]:
        """The last stage that each of these attempts is through with in this execution."""
        query = (sa.select(events.c.attempt, events.c.execution, events.c.data)
                 .where(events.c.attempt.in_(running), events.c.kind == EventKind.STAGE.value)
                 .order_by(events.c.attempt, events.c.seq))
        with self._read("reading stages") as connection:
            return {row.attempt: str(json.loads(row.data).get("stage")) for row in connection.execute(query)
                    if row.execution == running[row.attempt]}

    def calls(self, attempt_ids: Sequence[str]) -> list[tuple[float | None, str | None]]:
        """Seconds of each model call of these attempts' newest executions, None for one that failed for good; and how

        its prompt went on (:class:`woodshed.model.drift.Drift`), where it was captured.
        """
        query = (sa.select(events.c.kind, events.c.data).join(attempts, attempts.c.id == events.c.attempt)
                 .where(events.c.attempt.in_(_SOME), events.c.execution == attempts.c.executions)
                 .where(events.c.kind.in_((EventKind.MODEL_RESULT.value, EventKind.NOTE.value))))
        found: list[tuple[float | None, str | None]] = []
        for start in range(0, len(attempt_ids), _AT_ONCE):
            with self._read("reading model calls") as connection:
                for row in connection.execute(query, {"these": attempt_ids[start:start + _AT_ONCE]}):
                    data = json.loads(row.data)
                    if row.kind == EventKind.MODEL_RESULT.value and not data.get("inherited"):
                        found.append((float(data.get("seconds") or 0.0), data.get("drift")))
                    elif row.kind == EventKind.NOTE.value and "fault" in data and "call" in data:
                        found.append((None, None))
        return found

    def states(self, project: str) -> list[tuple[str, RunState, datetime]]:
        """Every request, how its run stands, and when it was made; oldest first."""
        query = (sa.select(requests.c.run, runs.c.state, requests.c.created_at).where(requests.c.project == project)
                 .join(runs, runs.c.id == requests.c.run).order_by(requests.c.created_at))
        with self._read("reading requests") as connection:
            return [(row.run, RunState(row.state), datetime.fromisoformat(row.created_at))
                    for row in connection.execute(query)]

    def census(self, project: str) -> dict[str, int]:
        """How many groups of all requests are what a :class:`Count` has."""
        with self._read("counting groups") as connection:
            mine = sa.case((requests.c.stale_at.is_not(None), "stale"), else_=None)
            what = sa.case(
                (groups.c.acked_at.is_not(None), "acked"),
                (groups.c.place.is_(None), sa.func.coalesce(mine, "partial")),
                (free(seconds(connection)), sa.func.coalesce(mine, "ready")), else_="leased").label("what")
            both = groups.join(requests, requests.c.run == groups.c.run)
            query = sa.select(what, sa.func.count()).select_from(both).where(
                requests.c.project == project).group_by("what")
            return {str(row[0]): int(row[1]) for row in connection.execute(query)}

    def oldest_ready(self, project: str) -> datetime | None:
        """When the group was complete that waits the longest for somebody to take it."""
        with self._read("looking for groups") as connection:
            row = connection.execute(_ready(project, seconds(connection), None, None).limit(1)).mappings().one_or_none()
        return None if row is None else datetime.fromisoformat(row["completed_at"])

    def loose(self, run_id: str) -> list[str]:
        """Attempts of a run that wait, and are no worker's."""
        query = sa.select(queued.c.attempt).where(queued.c.run == run_id, queued.c.worker.is_(None))
        with self._read("reading the queue") as connection:
            return list(connection.execute(query.order_by(queued.c.number)).scalars())

    def close_over(self) -> int:
        """Requests of which nothing will be handed out any more are over; how many this call found."""
        mine = groups.c.run == requests.c.run
        waiting = sa.exists().where(mine, groups.c.place.is_not(None), groups.c.acked_at.is_(None))
        partial = sa.exists().where(mine, groups.c.place.is_(None))
        cancelled = sa.exists().where(runs.c.id == requests.c.run, runs.c.state == RunState.CANCELLED.value)
        over = sa.or_(requests.c.stale_at.is_not(None), sa.and_(~waiting, sa.or_(~partial, cancelled)))
        found = sa.select(requests.c.run).where(requests.c.over_at.is_(None), over)
        with self._read("reading requests") as connection:  # most often there is none, and nobody waits for a lock
            ended = connection.execute(found).scalars().all()
        if ended:
            with self._write("closing requests") as connection:
                connection.execute(sa.update(requests).where(requests.c.run.in_(ended), requests.c.over_at.is_(None))
                                   .values(over_at=stamp(now())))
        return len(ended)

    def to_cancel(self) -> list[str]:
        """Stale requests whose attempts are to be called off, and are not yet."""
        query = sa.select(requests.c.run).join(submissions, submissions.c.run == requests.c.run).where(
            requests.c.stale_at.is_not(None), requests.c.on_stale == OnStale.CANCEL.value,
            submissions.c.state.in_(("open", "paused", "overdue")))
        with self._read("reading requests") as connection:
            return list(connection.execute(query).scalars())

    def overdue(self) -> list[str]:
        """Requests whose time was over before their attempts were."""
        query = sa.select(requests.c.run).join(submissions, submissions.c.run == requests.c.run).where(
            submissions.c.state == "overdue")
        with self._read("reading requests") as connection:
            return list(connection.execute(query).scalars())

    def _one(self, where: sa.ColumnElement[bool]) -> Request | None:
        with self._read("reading a request") as connection:
            row = connection.execute(sa.select(requests).where(where)).mappings().one_or_none()
        return None if row is None else _request(row)

    # -- policies ------------------------------------------------------------------------------------------------------

    def policy(self, project: str, endpoint: str) -> Policy | None:
        """The current version of an endpoint's policy; None where none was announced."""
        with self._read("reading a policy") as connection:
            return _current(connection, project, endpoint)

    def policies(self, project: str) -> list[Policy]:
        """The current version of each endpoint's policy."""
        newest = sa.select(policies.c.endpoint, sa.func.max(policies.c.rank).label("rank")).where(
            policies.c.project == project).group_by(policies.c.endpoint).subquery()
        query = sa.select(policies).join(newest, sa.and_(
            policies.c.endpoint == newest.c.endpoint, policies.c.rank == newest.c.rank)).where(
            policies.c.project == project).order_by(policies.c.endpoint)
        with self._read("reading policies") as connection:
            return [_policy(row) for row in connection.execute(query).mappings()]

    def weights(self, run_id: str) -> Version | None:
        """The version of the weights that the endpoint of a request has now: the current one, where it was announced

        since the request was made; else what the request says. None for what is no request, or names no endpoint.
        """
        newest = sa.select(policies.c.version).where(
            policies.c.project == requests.c.project, policies.c.endpoint == requests.c.endpoint,
            policies.c.announced_at >= requests.c.created_at,
        ).order_by(policies.c.rank.desc()).limit(1).scalar_subquery()
        query = sa.select(sa.func.coalesce(newest, requests.c.version)).where(
            requests.c.run == run_id, requests.c.endpoint.is_not(None))
        with self._read("reading a policy") as connection:
            found: str | None = connection.execute(query).scalar()
        version: Version | None = None if found is None else json.loads(found)
        return version

    def announce(
        self, project: str, endpoint: str, version: Version, *, back: bool = False
    ) -> tuple[Policy, list[str]]:
        """``version`` is current from now on; it, and the requests that became stale by that. Idempotent.

        With ``back`` it may be older than what was current: whatever was announced after it is forgotten, and requests
        of those, where they heed staleness, are stale. Raises Conflict for an older one without that.
        """
        with self._write("announcing a policy") as connection:
            current = _current(connection, project, endpoint, alone=self._server)
            rank = _announced(connection, project, endpoint, version, current)
            if current is not None and rank < current.rank:
                if not back:
                    raise Conflict(f"the current version of {endpoint} is {current.version}, and {version} is older",
                                   field="version", remedy="Say back=true where the trainer went back to it.")
                connection.execute(sa.delete(policies).where(_of(project, endpoint), policies.c.rank > rank))
            made = Policy(endpoint=endpoint, version=version, rank=rank)
            known = sa.select(policies.c.rank).where(_of(project, endpoint), policies.c.rank == rank)
            if connection.execute(known).scalar() is None:
                connection.execute(sa.insert(policies), {
                    "project": project, "endpoint": endpoint, "rank": rank, "version": json.dumps(version),
                    "announced_at": stamp(now())})
            elif back:
                connection.execute(sa.update(policies).where(
                    _of(project, endpoint), policies.c.rank == rank).values(announced_at=stamp(now())))
            return made, _outdated(connection, project, made, back=back)

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def any_ready(self, project: str, runs_: Sequence[str] | None, consumer: str | None = None) -> bool:
        """Whether a complete group is free to be taken; with a ``consumer``, or leased to it."""
        with self._read("looking for groups") as connection:
            query = _ready(project, seconds(connection), runs_, consumer).limit(1)
            return connection.execute(query).first() is not None

    def take(
        self, project: str, consumer: str, most: int, *, lease_s: float, runs_: Sequence[str] | None = None,
        again: bool = False,
    ) -> list[tuple[Group, Request]]:
        """At most ``most`` complete groups of any request (or of these), in order of completion, leased to a consumer.

        With ``again`` those that are leased to this very consumer come, too: whoever had that name has died.
        """
        with self._write("taking groups") as connection:
            at = seconds(connection)
            query = _ready(project, at, runs_, consumer if again else None).limit(most)
            if self._server:
                query = query.with_for_update(skip_locked=True, of=groups)
            found = [dict(row) for row in connection.execute(query).mappings()]
            for row in found:
                row |= leased(connection, row, consumer, at, lease_s)
            asked = sa.select(requests).where(requests.c.run.in_({row["run"] for row in found}))
            of = {row["run"]: _request(row) for row in connection.execute(asked).mappings()} if found else {}
            return [(group(row, at), of[row["run"]]) for row in found]


_SOME = sa.bindparam("these", type_=sa.String, expanding=True)
_AT_ONCE = 500  # names in one query


def _ready(project: str, at: float, runs_: Sequence[str] | None, consumer: str | None) -> sa.Select[Any]:
    mine = free(at) if consumer is None else sa.or_(free(at), groups.c.consumer == consumer)
    query = sa.select(groups).join(requests, requests.c.run == groups.c.run).where(
        requests.c.project == project, requests.c.over_at.is_(None), requests.c.stale_at.is_(None),
        groups.c.place.is_not(None), groups.c.acked_at.is_(None), mine)
    if runs_ is not None:
        query = query.where(requests.c.run.in_(runs_))
    return query.order_by(groups.c.completed_at, groups.c.run, groups.c.place)


def _standing(state: GroupState, *, stale: bool) -> str:
    if stale and state in (GroupState.PARTIAL, GroupState.COMPLETE):
        return "stale"
    return {GroupState.PARTIAL: "partial", GroupState.COMPLETE: "ready", GroupState.TAKEN: "leased",
            GroupState.ACKED: "acked"}[state]


def _of(project: str, endpoint: str) -> sa.ColumnElement[bool]:
    return sa.and_(policies.c.project == project, policies.c.endpoint == endpoint)


def _current(connection: sa.Connection, project: str, endpoint: str, *, alone: bool = False) -> Policy | None:
    """The version of the highest rank. ``alone``: on PostgreSQL, nobody announces another until the transaction ends.
    """
    if alone:
        lock = sa.func.pg_advisory_xact_lock(_POLICY_LOCK, sa.func.hashtext(f"{project}/{endpoint}"))
        connection.execute(sa.select(lock))
    query = sa.select(policies).where(_of(project, endpoint)).order_by(policies.c.rank.desc()).limit(1)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _policy(row)


_POLICY_LOCK = 0x7770  # "wp": the class of PostgreSQL's advisory locks under which policies are announced


def _announced(
    connection: sa.Connection, project: str, endpoint: str, version: Version, current: Policy | None
) -> int:
    """The rank that a version has, or gets."""
    found = _known(connection, project, endpoint, version, current)
    return found if found is not None else 0 if current is None else current.rank + 1


def _rank(
    connection: sa.Connection, project: str, endpoint: str, version: Version, current: Policy | None
) -> int:
    """The rank of the version that a request names. A name must have been announced."""
    found = _known(connection, project, endpoint, version, current)
    if found is None:
        raise Conflict(f"{version!r} was not announced as a version of {endpoint}", field="policy_version",
                       remedy=f"Say: PUT /v1/policies/{endpoint}")
    return found


def _known(
    connection: sa.Connection, project: str, endpoint: str, version: Version, current: Policy | None
) -> int | None:
    """A number is its own rank, a name has that of its announcement, if any. Raises Conflict where both are mixed."""
    if current is not None:
        _alike(endpoint, version, current)
    if isinstance(version, int):
        return version
    query = sa.select(policies.c.rank).where(_of(project, endpoint), policies.c.version == json.dumps(version))
    found: int | None = connection.execute(query).scalar()
    return found


def _alike(endpoint: str, version: Version, current: Policy) -> None:
    if isinstance(version, int) is not isinstance(current.version, int):
        kind = "numbers" if isinstance(current.version, int) else "names"
        raise Conflict(f"the versions of {endpoint} are {kind}", field="version", remedy="Keep to them.")


def _outdated(connection: sa.Connection, project: str, current: Policy, *, back: bool) -> list[str]:
    """Mark the requests that are stale by now, and of which a group is not acknowledged; which they are."""
    behind = requests.c.rank < current.rank - requests.c.max_staleness
    ahead = sa.and_(requests.c.rank > current.rank, sa.true() if back else sa.false())
    left = sa.exists().where(groups.c.run == requests.c.run, groups.c.acked_at.is_(None))
    query = sa.select(requests.c.run).where(
        requests.c.project == project, requests.c.endpoint == current.endpoint, requests.c.over_at.is_(None),
        requests.c.stale_at.is_(None), requests.c.max_staleness.is_not(None), sa.or_(behind, ahead), left)
    found = list(connection.execute(query.order_by(requests.c.created_at)).scalars())
    if found:
        connection.execute(sa.update(requests).where(requests.c.run.in_(found)).values(stale_at=stamp(now())))
    return found


def _policy(row: Mapping[Any, Any]) -> Policy:
    return rows.record(Policy, f"policy of {row['endpoint']}", row, texts=("version",),
                       without=("project", "announced_at"))


def _request(row: Mapping[Any, Any]) -> Request:
    return rows.record(Request, f"request {row['run']}", row, texts=("version",))
