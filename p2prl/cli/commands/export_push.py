"""Upload an export to a repository of the Hugging Face hub, with the user's own login. Nothing else here uploads."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalTokenNotFoundError  # type: ignore[attr-defined]
from huggingface_hub.utils import disable_progress_bars, validate_repo_id  # type: ignore[attr-defined]

from p2prl.errors import ConfigError, MachineError

_EXAMPLE = "For example: --push my-name/my-model"

_UNAUTHORIZED = frozenset({401, 403})


class HubRepository:
    """A model repository to upload to."""

    def __init__(self, name: str, *, private: bool, hub: HfApi | None = None, quiet: bool = False) -> None:
        """`hub` is huggingface_hub's client, by default with the user's login."""
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise ConfigError(f"--push {name!r} is not a repository: {error}", remedy=_EXAMPLE) from error
        if "/" not in name:
            raise ConfigError(f"--push {name!r} names no owner", remedy=_EXAMPLE)
        self.name = name
        self._private = private
        self._hub = hub or HfApi()
        if quiet:
            disable_progress_bars()

    def check_login(self) -> None:
        """Raise `ConfigError` without a login that the hub accepts, and `MachineError` when it does not answer.

        Called before the export, which may take minutes.
        """
        with self._errors("Nothing was exported."):
            self._hub.whoami()

    def upload(self, directory: Path, *, message: str) -> str:
        """Create the repository if needed and upload every file of `directory` in one commit; returns its address."""
        with self._errors(f"The export is complete: hf upload {self.name} {shlex.quote(str(directory))}"):
            address = self._hub.create_repo(repo_id=self.name, private=self._private, exist_ok=True)
            self._hub.upload_folder(repo_id=self.name, folder_path=directory, commit_message=message)
        return str(address)

    @contextmanager
    def _errors(self, state: str) -> Iterator[None]:
        try:
            yield
        except LocalTokenNotFoundError as error:
            raise ConfigError("there is no Hugging Face login here", remedy=f"Run hf auth login. {state}") from error
        except HfHubHTTPError as error:
            if error.response.status_code in _UNAUTHORIZED:
                raise ConfigError(
                    f"the hub refuses this login for {self.name}: {_first_line(error)}",
                    remedy=f"Run hf auth login with a token that may write to {self.name}. {state}",
                ) from error
            raise self._unreachable(error, state) from error
        except (HTTPError, OSError, RuntimeError, ValueError) as error:  # the library wraps a broken upload
            raise self._unreachable(error, state) from error

    def _unreachable(self, error: Exception, state: str) -> MachineError:
        return MachineError(
            f"the upload to {self.name} failed: {_first_line(error)}", remedy=f"Check the connection. {state}"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
