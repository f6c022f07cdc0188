"""What workers answer: one file for each part of a page. Each gets the worker and the request."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.web.answers import advice, ahead, factors, feed, forecast, network, scaling, study
from windtunnel.web.worker import Answering

ANSWERS: Mapping[str, Answering] = {
    "forecast": forecast.answer,
    "advice": advice.answer,
    "factors": factors.answer,
    "scaling": scaling.answer,
    "feed": feed.answer,
    "ahead": ahead.answer,
    "network": network.answer,
    "study": study.answer,
}
