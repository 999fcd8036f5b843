"""Where the control socket is when nobody says otherwise: daemon and command line must agree."""

SYSTEM_SOCKET_PATH = "/run/strata-router/control.sock"
"""Where the packaged service puts its socket (RuntimeDirectory=strata-router)."""


def default_socket_path(xdg_runtime_dir: str | None) -> str:
    """The default of ``control_socket``.

    xdg_runtime_dir: the environment's XDG_RUNTIME_DIR; None, empty and relative values do not count
    (the XDG specification says to ignore relative ones). Source: contract 3, ``control_socket``.
    """
    if xdg_runtime_dir and xdg_runtime_dir.startswith("/"):
        return f"{xdg_runtime_dir.rstrip('/')}/strata-router/control.sock"
    return SYSTEM_SOCKET_PATH
