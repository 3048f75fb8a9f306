"""A result to keep and share: merged into its base model, uploaded to the Hugging Face hub."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from hofl.core.durable import PARTIAL, put_in_place
from hofl.core.errors import HoflError, reason_of
from hofl.experiment.runs import RunDirectory

README = "README.md"


def adapter_of_run(run: Path) -> Path:
    """Return the adapter's folder of a finished run, every file as it was written.

    Raises:
        HoflError: the run is not finished, a file is damaged, or nobody has its base model.
    """
    directory = RunDirectory.open(run)
    if directory.config().model.weights == "random":
        raise HoflError("the run trained on random weights, and only its adapter was kept.")
    if directory.finished() is None:
        raise HoflError(f"{run} has no result. Resume the run: it writes one at its end.")
    return directory.adapter


def merge(run: Path, out: Path) -> None:
    """Write a run's model with the adapter merged into its weights: an ordinary model folder.

    The sum is taken in FP32 and stored in the dtype of the base model's files.
    """
    from hofl.experiment.card import as_whole_model
    from hofl.models.adapters import save_merged
    from hofl.models.loading import resolve_reference

    adapter = adapter_of_run(run)
    config = RunDirectory.open(run).config()
    if config.adapter.kind == "full":
        raise HoflError(f"{adapter} is a whole model already: the run trained every weight.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HoflError(f"{out} exists and is not empty. Choose another --out.")
    fresh = out.with_name(out.name + PARTIAL)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_merged(adapter, resolve_reference(config.model.name), fresh)
    card = (adapter / README).read_text(encoding="utf-8")
    (fresh / README).write_text(as_whole_model(card), encoding="utf-8")
    put_in_place(fresh, out)


@dataclass(frozen=True)
class Publication:
    """What would go to the hub.

    Args:
        repo: id of the repository.
        folder: whose files are uploaded.
        files: name -> size in bytes.
        private: whether a new repository is visible to its owner alone.
        notes: what its owner should know before others see it.
    """

    repo: str
    folder: Path
    files: dict[str, int]
    private: bool
    notes: tuple[str, ...]

    def upload(self) -> str:
        """Create the repository unless it exists, upload the files, and return the address."""
        from huggingface_hub import HfApi

        api = HfApi()
        try:
            address = api.create_repo(self.repo, private=self.private, exist_ok=True)
            api.upload_folder(
                repo_id=self.repo,
                folder_path=str(self.folder),
                allow_patterns=list(self.files),
                commit_message="Upload a model trained with hofl",
            )
        except Exception as error:  # of the hub, the network, or a missing login
            raise HoflError(
                f"cannot upload to {self.repo}: {reason_of(error)} Log in with hf auth login, or "
                "set HF_TOKEN to a token that may write."
            ) from None
        return str(address)


def publication(source: Path, repo: str, private: bool = False) -> Publication:
    """Collect what to upload: the adapter of a finished run, or a folder of ``merge``.

    The network is not used.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise HoflError(f"{repo!r} is not the id of a repository: {error}") from None
    if repo.count("/") != 1:
        raise HoflError(f"{repo!r} names no owner: write OWNER/NAME, such as ada/helpdesk-lora.")
    merged = (source / "config.json").is_file() and (source / README).is_file()
    folder = source if merged else adapter_of_run(source)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    card = (folder / README).read_text(encoding="utf-8")
    notes = []
    if "\nbase_model: " not in card:
        notes.append("the card names no base model on the hub: others cannot load the adapter")
    return Publication(repo, folder, files, private, tuple(notes))
