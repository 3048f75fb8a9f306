"""The model card of a trained adapter: README.md with the header that the hub reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from hofl.data.task import Chat, Documents, Form, FreeText, LabelWords
from hofl.data.tasks import BENCHMARKS
from hofl.experiment.build import Experiment
from hofl.experiment.records import HEADLINES, RunSummary
from hofl.models.sources import SOURCES

PACKAGES = ("hofl", "peft", "transformers", "torch")
LOADING = "## How to load it"
SCORES = (*HEADLINES, "em", "loss", "perplexity", "rouge_l")
DEQUANTISED = (
    "Training used the copy that hofl de-quantises from the package `{}`. Its weights differ "
    "slightly from those on the hub, and so may the scores."
)
WITH_HOFL = """from pathlib import Path

from hofl.models.adapters import load_trained

model = load_trained(Path("FOLDER"))
"""


@dataclass(frozen=True)
class Saved:
    """How a trained folder is loaded by others.

    Args:
        library: that loads it, by the hub's name.
        relation: to its base model, in the hub's words.
        tags: for the hub, beside those of every card.
        snippet: code that loads it; ``{base}`` is the quoted name of the base model.
    """

    library: str
    relation: str
    tags: tuple[str, ...]
    snippet: str


ADAPTER = Saved(
    "peft",
    "adapter",
    ("lora",),
    "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
    "base = AutoModelForCausalLM.from_pretrained({base})\n"
    'model = PeftModel.from_pretrained(base, "FOLDER")  # this folder\n',
)
WHOLE_MODEL = Saved(
    "transformers",
    "finetune",
    (),
    "from transformers import AutoModelForCausalLM\n\n"
    'model = AutoModelForCausalLM.from_pretrained("FOLDER")  # this folder\n',
)


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a reader of the adapter should know.

    Args:
        base: name of the base model: its hub id, or the folder as the user named it.
        on_hub: whether the base is a hub id.
        weights: what to know about the base model's weights, or empty.
        saved: how the folder is loaded.
        datasets: hub ids of the data.
        prompt: what the model was trained to answer.
        facts: label -> value, about the training.
        scores: score -> (before, after).
    """

    base: str
    on_hub: bool
    weights: str
    saved: Saved
    datasets: tuple[str, ...]
    prompt: Form
    facts: Mapping[str, str]
    scores: Mapping[str, tuple[float, float]]

    def markdown(self) -> str:
        """Return the text of README.md."""
        facts = [f"| {label} | {value} |" for label, value in self.facts.items()]
        scores = [f"| {name} | {a:.4f} | {b:.4f} |" for name, (a, b) in self.scores.items()]
        parts = [
            self._header(),
            f"# {self.facts['task']}: federated fine-tuning of {Path(self.base).name}",
            f"Trained with hofl on `{self.base}`. {self.weights}",
            "\n".join(["| training | |", "|---|---|", *facts]),
            "\n".join(["| score | before | after |", "|---|---|---|", *scores]),
            "## Prompt",
            f"```\n{self.prompt.template}\n```\n\n{_answer(self.prompt)}",
            LOADING,
            f"```python\n{self.saved.snippet.format(base=json.dumps(self.base))}```",
            "With hofl, which finds its own copy of a built-in model:",
            f"```python\n{WITH_HOFL}```",
        ]
        return "\n\n".join(part.rstrip() for part in parts) + "\n"

    def _header(self) -> str:
        """Return the YAML header; text is quoted as JSON, which YAML reads."""
        tags = ["federated-learning", "hofl", *self.saved.tags]
        lines = [f"library_name: {self.saved.library}", "pipeline_tag: text-generation"]
        if self.on_hub:
            lines.insert(0, f"base_model: {json.dumps(self.base)}")
            tags.append(f"base_model:{self.saved.relation}:{self.base}")
        lines += ["tags:", *(f"- {json.dumps(tag)}" for tag in tags)]
        if self.datasets:
            lines += ["datasets:", *(f"- {json.dumps(name)}" for name in self.datasets)]
        return "\n".join(["---", *lines, "---"])


def as_whole_model(card: str) -> str:
    """Return the card of an adapter as that of the model that it was merged into."""
    for before, after in (
        (f"library_name: {ADAPTER.library}\n", f"library_name: {WHOLE_MODEL.library}\n"),
        (f":{ADAPTER.relation}:", f":{WHOLE_MODEL.relation}:"),
        *((f'- "{tag}"\n', "") for tag in ADAPTER.tags),
    ):
        card = card.replace(before, after)
    text, _, _ = card.partition(LOADING)
    merged = "The adapter is merged into the weights."
    return f"{text}{merged}\n\n{LOADING}\n\n```python\n{WHOLE_MODEL.snippet}```\n"


def card_of(experiment: Experiment, summary: RunSummary) -> Card:
    """Return the card of a finished run."""
    config, local = experiment.config, experiment.method.local
    source, benchmark = SOURCES.get(config.model.name), BENCHMARKS.get(config.task.name)
    name = experiment.model.name if source is None else source.hub
    weights = "" if source is None else DEQUANTISED.format(source.requirement)
    if config.model.weights == "random":
        weights = (
            "Training began at random weights, which were not saved: the adapter cannot be used."
        )
    initial, final = summary.initial, summary.final
    saved, trained = WHOLE_MODEL, "every weight of every block"
    adapter = config.adapter
    if adapter.kind == "lora":
        on = ", ".join(adapter.targets)
        saved, trained = ADAPTER, f"LoRA of rank {adapter.rank}, alpha {adapter.alpha}, on {on}"
    sizes, private, start = config.fleet, experiment.privacy, adapter.start_sha256
    facts = {
        "task": "custom data" if config.custom else config.task.name,
        "method": config.method.name + (f", q {local.q}, mu {local.mu:g}" if local.q else ""),
        "trained": f"{trained} ({experiment.layout.size:,} parameters)",
        "rounds": f"{summary.rounds:,}",
        "clients": f"{sizes.clients:,}, {sizes.cohort:,} per round, {local.local_steps} steps each",
        "optimizer": f"{type(local.optimizer).__name__}, learning rate {local.optimizer.lr:g}",
        "seeds": f"run {config.seed}" + ("" if sizes.seed is None else f", fleet {sizes.seed}"),
        "privacy": "none" if private is None else f"local, noise multiplier {private.noise:g}",
        "examples scored": f"{initial['examples']:,} before, {final['examples']:,} after",
        **({} if start is None else {"started from": f"an adapter with SHA-256 {start}"}),
        "versions": ", ".join(f"{package} {version(package)}" for package in PACKAGES),
    }
    return Card(
        base=name,
        on_hub=not Path(experiment.model.reference).is_dir() or source is not None,
        weights=weights,
        saved=saved,
        datasets=() if benchmark is None else (benchmark.hub,),
        prompt=experiment.prompt,
        facts=facts,
        scores={key: (initial[key], final[key]) for key in SCORES if key in initial},
    )


def _answer(prompt: Form) -> str:
    if isinstance(prompt, Chat):
        return "The answer is generated, up to the end of the assistant's turn."
    if isinstance(prompt, Documents):
        return "The model continues a text."
    if isinstance(prompt.answer, LabelWords):
        return f"The answer is one of: {', '.join(prompt.answer.words)}."
    if isinstance(prompt.answer, FreeText):
        return "The answer is generated, up to a newline."
    return "The answer is one of the question's options."
