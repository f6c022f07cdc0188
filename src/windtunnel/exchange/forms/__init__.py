"""The forms of exchange, by name."""

from __future__ import annotations

from windtunnel.errors import UnknownName, nearest
from windtunnel.exchange.forms.asynchronous import ASYNCHRONOUS
from windtunnel.exchange.forms.local import DILOCO, LOCAL
from windtunnel.exchange.forms.mixed import MIXED
from windtunnel.exchange.forms.served import SERVED
from windtunnel.exchange.forms.synchronous import SYNCHRONOUS
from windtunnel.exchange.run import Form

FORMS: dict[str, Form] = {
    form.name: form for form in (SYNCHRONOUS, SERVED, ASYNCHRONOUS, MIXED, LOCAL, DILOCO)
}


def named(name: str) -> Form:
    """The form of this name."""
    if name not in FORMS:
        raise UnknownName(f"No form of exchange is called {name!r}.", hint=nearest(name, FORMS))
    return FORMS[name]
