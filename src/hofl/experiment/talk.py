"""Talk to a trained model: texts in, greedy answers out, in the form that the run was trained on.

Conversations go through the tokenizer's chat template, documents are continued, and a prompt with
one field is filled in. A prompt with several fields cannot be typed as one text: then it is a
conversation, too.
"""

from dataclasses import dataclass, field
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.core.process import tune_allocator, use_threads
from hofl.data.chat import ChatEncoder
from hofl.data.conversations import Message
from hofl.data.task import Chat, Documents, Form, Prompt
from hofl.data.tasks import BENCHMARKS, load_task
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory
from hofl.experiment.scoring import model_of_run
from hofl.experiment.tasks import OWN_DATA
from hofl.models.generation import greedy, stop_tokens
from hofl.models.loading import LoadedModel


@dataclass
class Talk:
    """A model that answers one text after another.

    Args:
        model: at the parameters to try.
        form: how a text is put to it.
        max_new_tokens: most tokens of an answer.
        messages: the conversation so far.
    """

    model: LoadedModel
    form: Form
    max_new_tokens: int
    messages: list[Message] = field(default_factory=list)

    @property
    def about(self) -> str:
        """What happens to a text, for people."""
        if isinstance(self.form, Prompt):
            return f"your text fills in: {self.form.template!r}"
        if isinstance(self.form, Documents):
            return "your text is continued"
        template = self.model.tokenizer.chat_template
        return f"a conversation, by {'the model' if template else 'hofl'}'s chat template"

    def answer(self, text: str) -> str:
        """Return the answer to a text; a conversation remembers both."""
        if isinstance(self.form, Chat):
            return self._reply(text)
        tokenizer = self.model.tokenizer
        ids: list[int] = tokenizer(_put(self.form, text))["input_ids"]
        if isinstance(self.form, Documents) and tokenizer.eos_token_id is not None:
            return self._generated(ids, (tokenizer.eos_token_id,))
        return self._generated(ids, stop_tokens(tokenizer))

    def _reply(self, text: str) -> str:
        encoder = ChatEncoder(self.model.tokenizer, self._room)
        self.messages.append({"role": "user", "content": text})
        try:
            ids = encoder.prompt(self.messages)
            while len(ids) > self._room and len(self.messages) > 1:
                del self.messages[:2]  # the oldest turn is forgotten
                ids = encoder.prompt(self.messages)
            reply = self._generated(ids, encoder.stops)
        except HoflError:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": reply})
        return reply

    @property
    def _room(self) -> int:
        """How many tokens may come before an answer."""
        config = self.model.split.config
        return int(getattr(config, "max_position_embeddings", 2**20)) - self.max_new_tokens

    def _generated(self, ids: list[int], stops: tuple[int, ...]) -> str:
        if len(ids) > self._room:
            raise HoflError(
                f"the text takes {len(ids)} tokens, and the model has room for {self._room} before "
                "an answer: shorten it, or lower --max-new-tokens."
            )
        (tokens,) = greedy(self.model.split, [ids], stops, self.max_new_tokens)
        text: str = self.model.tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()


def talk_to(run: Path, max_new_tokens: int) -> Talk:
    """Load a run's model at its latest parameters."""
    config = RunDirectory.open(run).config()
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    model = model_of_run(config, run)
    if model.tokenizer is None:
        raise HoflError(f"the model {config.model.name} has no tokenizer: it cannot be talked to.")
    return Talk(model, _form(config), max_new_tokens)


def _form(config: ExperimentConfig) -> Form:
    """Return the form in which a run's model takes a text; no example is read for it."""
    form: Form
    name, custom = config.task.name, config.custom
    if custom is not None:
        form = OWN_DATA[name].form(custom)
    elif name in BENCHMARKS:
        prompts = BENCHMARKS[name].prompts
        form = prompts[config.task.prompt or next(iter(prompts))]
    else:
        form = load_task(name).prompt(config.task.prompt)
    several = isinstance(form, Prompt) and len(form.fields) > 1
    return Chat() if several else form


def _put(form: Prompt | Documents, text: str) -> str:
    return text if isinstance(form, Documents) else form.render({form.cut: text})
