"""What tests on real etcd servers share."""

from __future__ import annotations

import pytest

from support.etcd_certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of the CA that the servers trust."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
