"""The console as a web application: pages, news, questions, and logins."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tsunagi.console import access
from tsunagi.console.feeds import Feed, events
from tsunagi.console.history import read_history
from tsunagi.console.observer import Observer
from tsunagi.runtime.log import LogError
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes

STATIC = Path(__file__).with_name("static")
"""The files of the pages."""
PAGES = ("/", "/slots", "/sensors", "/queries", "/cost", "/troubles")
"""The addresses of pages. All of them are the same file, whose script shows the one that is asked for."""
COOKIE = "tsunagi-console"
"""The name of the cookie that holds a session."""
SESSION_S = 12 * 3600
"""A login holds for so long, in seconds."""
KILLED = frozenset({"worker", "edge", "spark", "scaler", "learner"})
"""The roles of processes that may be killed."""
MOST_BODY = 65_536
"""A request's body may have so many bytes."""
LOGINS = RateLimitItemPerMinute(10)
"""Number of wrong passwords that one address may send in a minute; further ones are refused."""
ACTS_A_MINUTE = RateLimitItemPerMinute(30)
"""Number of acts, or previews of them, that one address may ask for in a minute."""
HISTORIES = RateLimitItemPerMinute(30)
"""Number of histories that one address may ask for in a minute; each of them reads the log."""
MOST_HOURS = 168.0
"""Longest past that one question may ask for, in hours."""
MOST_POINTS = 4000
"""Most points of one chart."""
_FRESH = {"Cache-Control": "no-store"}
"""Headers of answers that nobody may keep."""
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""What every answer tells the browser: no script, style or picture from elsewhere, and none inside the page."""


class SecureAnswers:
    """Adds `SECURITY` to every answer, and refuses bodies that are too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MOST_BODY or b"transfer-encoding" in headers:
            await JSONResponse({"error": "the request is too long"}, 413)(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.lower().encode(), value.encode()) for name, value in SECURITY.items()),
                ]
            await send(message)

        await self._app(scope, receive, secured)


class Console:
    """The answers to requests.

    Args:
        observer: what is known of the system.
        users: the file of users; None = nobody logs in, and everybody is a viewer.
        stopping: tells whether the process is about to end, so that streams end too.
        chaos: whether processes of this machine may be killed, to see what happens then.
    """

    def __init__(
        self, observer: Observer, users: Path | None, stopping: Callable[[], bool], *, chaos: bool = False
    ) -> None:
        self._observer = observer
        self._users = users
        self._stopping = stopping
        self._chaos = chaos
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._rows: dict[str, Feed] = {}  # of the queries that somebody has looked at
        self._feeds: dict[str, Feed] = {
            "fleet": Feed(observer.fleet, 0.5),
            "places": Feed(observer.places, 2.0),
            "slots": Feed(observer.slots, 0.2),
            "queries": Feed(observer.queries, 0.5),
            "sinks": Feed(observer.sinks, 0.5),
            "cost": Feed(observer.cost, 1.0),
            "troubles": Feed(observer.troubles, 0.5),
        }

    # ---- who asks

    def _user(self, request: Request) -> tuple[str, access.Role] | None:
        """Return the name and the role of whoever asks; None = a login is needed."""
        if self._users is None:
            return "", "viewer"
        name = request.session.get("user")
        user = access.read_users(self._users).get(name) if isinstance(name, str) else None
        if user is None or not hmac.compare_digest(request.session.get("of", ""), user.hash[-16:]):
            return None  # removed meanwhile, or the password has changed
        return user.name, user.role

    def _viewer(self, request: Request) -> tuple[str, access.Role]:
        user = self._user(request)
        if user is None:
            raise HTTPException(401, "please log in")
        return user

    async def _posted(self, request: Request) -> Mapping[str, Any]:
        """Return the JSON object of a request that this console's own page has sent.

        A page of another host cannot send it: the browser names its origin, and asks before it sends JSON.
        """
        origin = request.headers.get("origin", "")
        if origin and urlsplit(origin).netloc != request.headers.get("host"):
            raise HTTPException(403, "the request comes from another page")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "expected JSON")
        try:
            found = await request.json()
        except ValueError:
            raise HTTPException(400, "found no JSON") from None
        if not isinstance(found, dict):
            raise HTTPException(400, "found no JSON object")
        return found

    def _limit(self, what: RateLimitItemPerMinute, kind: str, request: Request) -> None:
        address = request.client.host if request.client else ""
        if not self._limiter.hit(what, kind, address):
            raise HTTPException(429, "too many requests; try again in a minute")

    async def me(self, request: Request) -> Response:
        """Say who asks, and what this console has."""
        user = self._user(request)
        return JSONResponse(
            {
                "user": None if user is None else user[0],
                "role": None if user is None else user[1],
                "login": self._users is not None,
                "kills": user is not None and self._may_kill(user[1]),
            },
            headers=_FRESH,
        )

    async def login(self, request: Request) -> Response:
        """Begin a session, if name and password are right."""
        given = await self._posted(request)
        self._limit(LOGINS, "login", request)
        name, password = given.get("user"), given.get("password")
        if self._users is None or not isinstance(name, str) or not isinstance(password, str):
            raise HTTPException(400, "expected user and password")
        users = access.read_users(self._users)
        user = await run_in_threadpool(access.check, users, name, password)
        if user is None:
            raise HTTPException(403, "name or password is wrong")
        request.session.clear()
        request.session.update({"user": user.name, "of": user.hash[-16:]})
        return JSONResponse({"user": user.name, "role": user.role})

    async def logout(self, request: Request) -> Response:
        """End the session."""
        await self._posted(request)
        request.session.clear()
        return JSONResponse({})

    # ---- what is asked

    async def page(self, request: Request) -> Response:
        """Return the page. What it shows is asked for by its script, with the user's rights."""
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    async def events(self, request: Request) -> Response:
        """Stream the feeds that are named, and the rows of a query."""
        self._viewer(request)
        names = [name for name in request.query_params.get("feeds", "").split(",") if name in self._feeds]
        feeds = {name: self._feeds[name] for name in names}
        query = request.query_params.get("query", "")
        if query:
            known = {item["query"] for item in self._observer.queries()}
            if query not in known:
                raise HTTPException(
                    404, f"query {query[:64]}: expected one of {', '.join(sorted(known)) or 'no queries'}"
                )
            feeds["rows"] = self._rows.setdefault(query, Feed(lambda: self._observer.rows(query), 0.3))
        if not feeds:
            raise HTTPException(400, f"feeds: expected some of {', '.join(self._feeds)}")
        return _stream(events(feeds, self._stopping))

    async def sensors(self, request: Request) -> Response:
        """Search the sensors."""
        self._viewer(request)
        asked = request.query_params
        return JSONResponse(
            self._observer.find(asked.get("find", ""), asked.get("edge", ""), asked.get("quality", "")),
            headers=_FRESH,
        )

    async def sensor(self, request: Request) -> Response:
        """Say what is known of a sensor now."""
        self._viewer(request)
        found = self._observer.sensor(request.query_params.get("name", ""))
        if found is None:
            raise HTTPException(404, "no such sensor")
        return JSONResponse(self._observer.about(found), headers=_FRESH)

    async def history(self, request: Request) -> Response:
        """Return the last hours of a sensor."""
        self._viewer(request)
        self._limit(HISTORIES, "history", request)
        found = self._observer.sensor(request.query_params.get("name", ""))
        if found is None:
            raise HTTPException(404, "no such sensor")
        hours = _number(request, "hours", 1.0, MOST_HOURS)
        points = int(_number(request, "points", 1000.0, float(MOST_POINTS)))
        observer = self._observer
        history = await run_in_threadpool(
            read_history, observer.log, observer.settings, observer.values.table, found, hours
        )
        return JSONResponse(await run_in_threadpool(history.as_json, points), headers=_FRESH)

    # ---- what is done

    async def act(self, request: Request) -> Response:
        """Do an act, or say what it would do (`"preview": true`)."""
        given = await self._posted(request)
        user, role = self._viewer(request)
        if role != "operator":
            raise HTTPException(403, "only an operator may do that")
        self._limit(ACTS_A_MINUTE, "act", request)
        name, fields = request.path_params["name"], given.get("fields", {})
        if not isinstance(fields, dict):
            raise HTTPException(400, "fields: expected an object")
        by = None if given.get("preview", True) else user
        try:
            return JSONResponse({"said": await run_in_threadpool(do_act, self._observer.settings, name, fields, by)})
        except ValueError as error:
            raise HTTPException(400, str(error)) from None

    async def kill(self, request: Request) -> Response:
        """Kill a process of this machine (SIGKILL), if this console was started with `--chaos`."""
        given = await self._posted(request)
        user, role = self._viewer(request)
        if not self._may_kill(role):
            raise HTTPException(403, "only an operator may do that, on a console that was started with --chaos")
        self._limit(ACTS_A_MINUTE, "act", request)
        node, state = given.get("node"), self._observer.settings.state
        found = next((item for item in processes.list_processes(state) if item.node == node), None)
        if found is None or found.role not in KILLED or not await run_in_threadpool(processes.kill, found):
            raise HTTPException(404, "no process of this name runs on the console's machine")
        structlog.get_logger("tsunagi.console").warning("killed", node=node, by=user or "somebody")
        return JSONResponse({"killed": node, "at_us": time.time_ns() // 1000})

    def _may_kill(self, role: access.Role) -> bool:
        """Return whether somebody may kill: an operator; where nobody logs in, everybody who sees the page."""
        return self._chaos and (role == "operator" or self._users is None)


def _number(request: Request, name: str, default: float, most: float) -> float:
    try:
        found = float(request.query_params.get(name, default))
    except ValueError:
        found = float("nan")
    if not 0 < found <= most:
        raise HTTPException(400, f"{name}: expected a number above 0 and at most {most:g}")
    return found


def _stream(lines: AsyncIterator[str]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines, media_type="text/event-stream", headers=headers)


async def _refused(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = error.detail if isinstance(error, HTTPException) else "the console has failed; its log says why"
    return JSONResponse({"error": text}, status, headers=_FRESH)


async def _no_log(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the log does not answer: {error}"}, 503, headers=_FRESH)


def do_act(settings: Settings, name: str, fields: Mapping[str, Any], by: str | None) -> list[str]:
    """Do an act; return what was done.

    Args:
        by: who asked for the act; None = it is not done, and what it would do is returned.

    Raises:
        ValueError: what is asked for is impossible.
        LogError: the log does not answer.
    """
    from tsunagi.console import acts  # noqa: PLC0415 - it loads half of the system, which a console need not start with

    return acts.preview(settings, name, fields) if by is None else acts.do(settings, name, fields, by)


def make_app(
    observer: Observer,
    users: Path | None,
    secret: str,
    hosts: list[str],
    stopping: Callable[[], bool],
    *,
    chaos: bool = False,
) -> Starlette:
    """Return the application.

    Args:
        users: the file of users; None = everybody is a viewer.
        secret: signs the cookies of sessions.
        hosts: the names by which browsers may ask for it; others are refused, so that a foreign page cannot make a name
            of its own point to this address (DNS rebinding).
        chaos: whether processes of this machine may be killed.
    """
    console = Console(observer, users, stopping, chaos=chaos)
    routes = [
        *(Route(path, console.page) for path in PAGES),
        Route("/api/me", console.me),
        Route("/api/login", console.login, methods=["POST"]),
        Route("/api/logout", console.logout, methods=["POST"]),
        Route("/api/events", console.events),
        Route("/api/sensors", console.sensors),
        Route("/api/sensor", console.sensor),
        Route("/api/history", console.history),
        Route("/api/acts/{name}", console.act, methods=["POST"]),
        Route("/api/kill", console.kill, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    middleware = [
        Middleware(SecureAnswers),
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
        Middleware(SessionMiddleware, secret_key=secret, session_cookie=COOKIE, max_age=SESSION_S, same_site="strict"),
    ]
    handlers: Mapping[Any, Any] = {HTTPException: _refused, LogError: _no_log, Exception: _refused}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
