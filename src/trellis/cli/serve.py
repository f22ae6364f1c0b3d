"""`trellis serve`: the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.app import current_actor, operate, resolve_url
from trellis.cli.job_projection import hosting, projection_option
from trellis.cli.options import debug_option, url_option
from trellis.cli.output import complain
from trellis.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from fastapi import FastAPI

    from trellis.operations.operator import Operator

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@click.command("serve")
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True,
    help="The address to listen on.",
)  # fmt: skip
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=8321, show_default=True,
    help="The port; 0 takes a free one.",
)  # fmt: skip
@click.option(
    "--host-name", "names", metavar="NAME", multiple=True,
    help="A name by which callers know this server; may be given several times.",
)  # fmt: skip
@click.option("--tls-cert", metavar="FILE", help="The certificate; needs --tls-key.")
@click.option("--tls-key", metavar="FILE", help="The key of the certificate.")
@click.option("--behind-proxy", is_flag=True, help="A proxy in front of it does TLS.")
@click.option(
    "--maintenance/--no-maintenance", default=True, show_default=True,
    help="Lead the maintenance when no worker with database access does.",
)  # fmt: skip
@click.option("--no-auth", is_flag=True, help="Let every caller do everything; loopback only.")
@click.option(
    "--max-rate", metavar="NUMBER", type=click.IntRange(0), default=5000, show_default=True,
    help="Requests per second of one token; 0: no limit.",
)  # fmt: skip
@click.option(
    "--max-streams", metavar="NUMBER", type=click.IntRange(0), default=500, show_default=True,
    help="Open streams of all callers; half of them may be of one token.",
)  # fmt: skip
@projection_option
@click.option(
    "--no-projection",
    is_flag=True,
    help="On NATS, rely on `trellis jobs serve` instead of keeping a projection here.",
)
@click.option("--no-login", is_flag=True, help="Write no address for a login with a browser.")
@url_option
@debug_option
def serve(
    *,
    host: str,
    port: int,
    names: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    behind_proxy: bool,
    maintenance: bool,
    no_auth: bool,
    max_rate: int,
    max_streams: int,
    no_login: bool,
    place: str | None,
    no_projection: bool,
    url: str | None,
) -> None:
    """Answer HTTP requests about the jobs.

    Programs send a token that `trellis tokens create` has made; a browser logs in once with the
    address that is written here, within ten minutes. The description of all routes is at
    /api/v1/openapi.json. For jobs on NATS it also does what `trellis jobs serve` does.
    """
    if (tls_cert is None) != (tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key belong together. Give both, or none.")
    _check_exposure(host, is_encrypted=bool(tls_cert) or behind_proxy, no_auth=no_auth)
    beside = None if no_projection else hosting(resolve_url(url), place)
    has_token = operate(url, _has_token)
    if not has_token and not no_auth:
        if host not in _LOOPBACK:
            raise ConfigurationError(
                f"There is no valid token, so no caller could use {host}:{port}. Create one first: "
                "trellis tokens create admin.read"
            )
        complain("There is no valid token yet. Create one with: trellis tokens create admin.read")
    from trellis.worker.child_process import tune_interpreter

    app = _app(
        url,
        (*names, host),
        (max_rate, max_streams),
        no_auth=no_auth,
        behind_proxy=behind_proxy,
        maintenance=maintenance,
        beside=beside,
    )
    tune_interpreter()
    code = None if no_auth or no_login else operate(url, _new_code)
    _run(app, (host, port), (tls_cert, tls_key), f"https://{names[0]}" if names else None, code)


def _check_exposure(host: str, *, is_encrypted: bool, no_auth: bool) -> None:
    if host in _LOOPBACK:
        return
    if no_auth:
        raise ConfigurationError(
            "--no-auth would let everyone who reaches it change jobs. It is for 127.0.0.1 only; "
            "create a token instead: trellis tokens create admin.read"
        )
    if not is_encrypted:
        raise ConfigurationError(
            f"Tokens would pass through the network unencrypted at {host}. Give --tls-cert and "
            "--tls-key, or --behind-proxy if a proxy does TLS."
        )


async def _has_token(jobs: Operator) -> bool:
    return any(each.state == "valid" and not each.is_login for each in await jobs.tokens.find())


async def _new_code(jobs: Operator) -> str:
    from trellis.operations.logins import create_code

    return await create_code(jobs.engine, current_actor())


def _app(
    url: str | None,
    names: tuple[str, ...],
    most: tuple[int, int],
    *,
    no_auth: bool,
    behind_proxy: bool,
    maintenance: bool,
    beside: AbstractAsyncContextManager[object] | None,
) -> FastAPI:
    from trellis.server import Limits, create_app

    rate, streams = most
    limits = Limits(
        rate=rate, burst=2 * rate, streams=streams, streams_per_token=max(1, streams // 2)
    )
    return create_app(
        url, hosts=names, no_auth=no_auth, behind_proxy=behind_proxy, limits=limits,
        maintenance=maintenance, beside=beside,
    )  # fmt: skip


def _run(
    app: FastAPI,
    place: tuple[str, int],
    tls: tuple[str | None, str | None],
    public: str | None,
    code: str | None,
) -> None:
    try:
        from trellis.server import running
    except ModuleNotFoundError:
        raise ConfigurationError(
            "The HTTP API needs uvicorn. Install it with: pip install 'trellis-jobs[server]'"
        ) from None
    certificate, key = tls
    config = running.configure(app, *place, ssl_certfile=certificate, ssl_keyfile=key)
    with running.listen(config) as listening:
        address, actual = listening.getsockname()[:2]
        name = f"[{address}]" if ":" in address else address
        server = f"{'https' if certificate else 'http'}://{name}:{actual}"
        complain(f"Listening on {server}/api/v1. Ctrl-C ends it.")
        if code is not None:
            complain(f"Log in with a browser, once: {public or server}/login?code={code}")
        running.Server(config).run(sockets=[listening])
