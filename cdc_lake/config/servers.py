"""The embedded servers, and the base class of sections whose address may be `embedded`."""

import json
from pathlib import Path

from pydantic import Field, PrivateAttr

from cdc_lake.config.base import Model
from cdc_lake.config.secrets import ConfigPath
from cdc_lake.config.urls import EMBEDDED
from cdc_lake.errors import ConfigError


def endpoints_file(stack_folder: str | Path) -> Path:
    """The file in which a running embedded stack stores its addresses: a JSON object of strings."""
    return Path(stack_folder) / "endpoints.json"


class StackConfig(Model):
    """The embedded servers of `cdc-lake stack` and `cdc-lake demo`."""

    folder: ConfigPath = Field(
        default="../.cdc_lake/stack", description="Sets the folder of their data, logs and addresses."
    )

    def address(self, server: str) -> str:
        """The address of a running server, read each time, because a restart may change it.

        Raises:
            ConfigError: the server is not running.
        """
        file = endpoints_file(self.folder)
        if not file.is_file():
            raise ConfigError(
                f"{server}: embedded",
                f"the embedded servers in {self.folder} are not running",
                "run `cdc-lake stack up`, or set the address in the configuration file",
            )
        address: str | None = json.loads(file.read_text(encoding="utf-8")).get(server)
        if address is None:
            raise ConfigError(
                f"{server}: embedded",
                f"the embedded servers in {self.folder} were started without this server",
                f"run `cdc-lake stack down`, then `cdc-lake stack up --{server}`",
            )
        return address


class ServerConfig(Model):
    """A section with the address of a server. `Config` gives it the stack that `embedded` refers to."""

    _stack: StackConfig = PrivateAttr(default_factory=StackConfig)

    def _resolved(self, setting: str, server: str) -> str:
        return self._stack.address(server) if setting == EMBEDDED else setting
