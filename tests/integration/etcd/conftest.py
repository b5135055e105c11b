"""What tests on real etcd servers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.etcd_certificates import Certificates
from support.etcd_servers import VERSIONS, Servers, serving


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of the CA that the servers trust."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=VERSIONS)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One server of each version of etcd, for the tests of a module."""
    with serving(request.param, tmp_path_factory.mktemp("etcd")) as servers:
        yield servers
