"""A service on this machine for playbooks that need one."""

from tests.examples.conftest import shop as shop
