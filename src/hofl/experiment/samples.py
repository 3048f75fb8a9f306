"""RUN/samples.json: answers to fixed test prompts, before and after training."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hofl.core.durable import write_whole
from hofl.data.encoded import EncodedSet, Question
from hofl.evaluation.written import rouge_l, written
from hofl.experiment.build import Experiment
from hofl.experiment.config import EvaluationConfig
from hofl.experiment.records import RunSummary
from hofl.experiment.tasks import sample_questions
from hofl.models.split import SplitModel
from hofl.server.state import ServerState

SAMPLES = "samples.json"


@dataclass(frozen=True)
class Samples:
    """Answers to fixed prompts, before and after training."""

    questions: Sequence[Question]
    before: list[str]
    after: list[str]
    rouge_l: tuple[float, float] | None

    def write(self, run: Path) -> None:
        """Write the file of a run."""
        rows = [
            {"prompt": q.asked, "expected": q.expected, "before": before, "after": after}
            for q, before, after in zip(self.questions, self.before, self.after, strict=True)
        ]
        scores = (
            {}
            if self.rouge_l is None
            else dict(zip(("before", "after"), self.rouge_l, strict=True))
        )
        facts: dict[str, Any] = {"rouge_l": scores, "answers": rows}
        write_whole(run / SAMPLES, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")

    def added_to(self, summary: RunSummary) -> RunSummary:
        """Return the summary with ROUGE-L among its scores, where it was asked for."""
        if self.rouge_l is None:
            return summary
        before, after = self.rouge_l
        return replace(
            summary,
            initial={**summary.initial, "rouge_l": before},
            final={**summary.final, "rouge_l": after},
        )


def sampled(
    experiment: Experiment, state: ServerState, progress: Callable[[int, int], None]
) -> Samples | None:
    """Ask the model of the start and that of the end the same questions; None without any."""
    settings, model = experiment.config.evaluation, experiment.model.split
    questions, tokenizer = experiment.questions, experiment.model.tokenizer
    if not questions:
        return None

    def answers(of: ServerState) -> list[str]:
        model.load(of.w.to(model.device))
        return written(model, questions, tokenizer, settings.batch_size, progress)

    before, after = answers(experiment.start), answers(state)
    scores = None
    if settings.rouge:
        right = [question.expected for question in questions]
        scores = (rouge_l(before, right), rouge_l(after, right))
    return Samples(questions, before, after, scores)


def rouge_of(model: SplitModel, test: EncodedSet, settings: EvaluationConfig) -> dict[str, float]:
    """Return ROUGE-L of a model as it is, if the configuration asks for it."""
    if not settings.rouge:
        return {}
    questions = sample_questions(test, settings)
    answers = written(model, questions, test.tokenizer, settings.batch_size)
    return {"rouge_l": rouge_l(answers, [question.expected for question in questions])}
