"""Summaries: their limits and counts, and the summarizers that make them."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda

from threadkeep._core.texts import text_of
from threadkeep.errors import InvalidArgumentError, SummaryError
from threadkeep.memory import extract
from threadkeep.memory.summaries import Summarizer, Summary
from threadkeep.memory.summarizers import (
    CallableSummarizer,
    ChatModelSummarizer,
    ExtractiveSummarizer,
    as_summarizer,
)

MESSAGES = [
    HumanMessage("Hello! The latency of order-1234 rose to 350 ms after version 2.4.1."),
    AIMessage("Thanks. I will look at it. Maybe it is the pool."),
    HumanMessage("We decided to roll back to 2.4.0 before Friday. Who tells Frankfurt?"),
]
CHINESE = [
    HumanMessage("你好！版本 2.4.1 发布之后，订单 order-1234 的延迟上升到 350 毫秒。"),
    AIMessage("谢谢，我来看一下。"),
    HumanMessage("我们决定在周五之前回滚到 2.4.0。谁通知法兰克福？"),
]
TOOLS = [
    AIMessage("", tool_calls=[{"name": "search", "args": {"query": "池 " * 900}, "id": "1"}]),
    ToolMessage("row " * 5000, name="search", tool_call_id="1"),
]


class Structured(FakeListChatModel):
    """A model with structured output: its answers are JSON."""

    def with_structured_output(self, schema, **kwargs):
        assert schema["required"]
        return self | RunnableLambda(lambda message: json.loads(message.content))


class Slow(BaseChatModel):
    """A model that answers when it is let go."""

    go: Any

    @property
    def _llm_type(self):
        return "slow"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.go.wait()
        return ChatResult(generations=[ChatGeneration(message=AIMessage("late"))])


def test_a_summary_comes_back_from_json():
    summary = Summary("text", ("a",), ("b",), ("c", "d"), ("e?",), 7, ("2026-01-01", "2026-01-02"))

    assert Summary.from_dict(json.loads(json.dumps(summary.to_dict()))) == summary
    assert Summary.from_dict({"content": "text", "later": 1}) == Summary("text")


@pytest.mark.parametrize("data", [{}, {"content": 1}, "text", None])
def test_a_summary_without_content_is_refused(data):
    with pytest.raises(InvalidArgumentError):
        Summary.from_dict(data)


def test_the_text_of_blocks():
    blocks = ["one", {"type": "text", "text": "two"}, {"type": "image_url", "image_url": "x"}]

    assert text_of(HumanMessage(blocks)) == "one\ntwo"
    assert text_of(HumanMessage("three")) == "three"


# -- offline ---------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [MESSAGES, CHINESE], ids=["en", "zh"])
def test_facts_and_decisions_are_extracted(messages):
    summary = ExtractiveSummarizer(100).summarize(messages, None)

    assert "2.4.0" in summary.content
    assert len(summary.content) <= 100
    assert [text for text in summary.decisions if "2.4.0" in text] == [*summary.decisions]
    assert {"order-1234", "2.4.1", "350"} <= {*summary.entities}
    assert len(summary.open_questions) == 1
    assert summary.message_count == 3


def test_a_question_that_is_answered_is_not_open():
    answered = [*MESSAGES, AIMessage("I have told Frankfurt.")]

    assert ExtractiveSummarizer().summarize(answered, None).open_questions == ()


def test_a_previous_summary_is_merged():
    summarizer = ExtractiveSummarizer()
    first = summarizer.summarize(MESSAGES, None)
    more = [HumanMessage("We agreed that eu-west-3 is the new region.")]

    second = summarizer.summarize(more, first)

    assert "2.4.0" in second.content
    assert "eu-west-3" in second.content
    assert len(second.decisions) == 2
    assert second.message_count == 4
    assert summarizer.summarize(more, first) == second


def test_long_messages_and_many_are_bounded():
    long = "word1 is 17. " * 100_000
    started = time.process_time()

    summary = ExtractiveSummarizer().summarize([HumanMessage(long)] * 50, None)

    assert "word1" in summary.content
    assert time.process_time() - started < 0.5  # (some milliseconds)


words = st.sampled_from(
    ["We decided", "数据库", "a_b", "3.5", "?", "。", ". ", "\n", "x" * 90, " "]
)
texts = st.text(max_size=50) | st.lists(words, max_size=12).map("".join)


@given(st.lists(texts, max_size=4), texts, st.integers(20, 200))
def test_any_text_makes_a_summary_within_the_limit(contents, before, limit):
    summarizer = ExtractiveSummarizer(limit)
    messages = [HumanMessage(text) for text in contents]

    summary = summarizer.summarize(messages, Summary(before, message_count=5))

    assert 0 < len(summary.content) <= limit
    assert summary.message_count == 5 + len(messages)
    assert summary == summarizer.summarize(messages, Summary(before, message_count=5))


@given(texts, st.integers(20, 60))
def test_texts_are_cut_where_words_end(text, limit):
    cut = extract.shortened(text, limit)
    whole = " ".join(text.split())

    assert len(cut) <= limit
    assert cut == whole if len(whole) <= limit else whole.startswith(cut.removesuffix("…"))


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("One sentence here. And then another one.", "One sentence here."),
        ("no sentence ends in this text at all", "no sentence ends in…"),
        ("这里是第一句话，它结束了。然后还有另一句话没有结束", "这里是第一句话，它结束了。"),
    ],
)
def test_a_text_is_cut_at_a_sentence_or_a_word(text, cut):
    assert extract.shortened(text, 24) == cut


# -- a chat model ----------------------------------------------------------------------

ANSWER = {
    "content": "Rolled back. " + "x" * 500,
    "key_topics": ["latency"],
    "decisions": "roll back",
    "entities": [str(n) for n in range(500)],
    "open_questions": [],
}


@pytest.mark.parametrize("mode", ["summarize", "asummarize"])
async def test_structured_output_is_used_and_bounded(mode):
    summarizer = ChatModelSummarizer(Structured(responses=[json.dumps(ANSWER)]))

    summary = await called(summarizer, mode, MESSAGES, Summary("before", message_count=9))

    assert summary.content.startswith("Rolled back.")
    assert len(summary.content) <= 200
    assert summary.decisions == ("roll back",)
    assert len(summary.entities) == 20
    assert summary.message_count == 12


@pytest.mark.parametrize("mode", ["summarize", "asummarize"])
async def test_a_model_without_structured_output_answers_in_plain_text(mode):
    summarizer = ChatModelSummarizer(FakeListChatModel(responses=["A short text. " * 40]))

    summary = await called(summarizer, mode, MESSAGES, Summary("before", decisions=("old",)))

    assert summary.content.endswith("A short text.")
    assert len(summary.content) <= 200
    assert summary.decisions == ("old", "We decided to roll back to 2.4.0 before Friday.")


FIELDS = {"content": "They move to PostgreSQL.", "decisions": ["PostgreSQL"], "entities": ["shop"]}
JSON = json.dumps(FIELDS)


@pytest.mark.parametrize("mode", ["summarize", "asummarize"])
@pytest.mark.parametrize(
    "answer",
    [
        JSON,
        f"```json\n{JSON}\n```",
        f"``` {JSON} ```",
        f"```JSON\n{JSON}",
        f"Here is the summary:\n```json\n{JSON}\n```\nAnything else?",
        f"Here it is: {JSON}",
        f"{JSON}\n\nTell me if you need more.",
        f"<think>They wrote {{x}} and {{'a': 1}}.</think>\n{JSON}",
        f"Here it is:\n```jsonc\n{JSON.replace('content', 'summary')}\n```\nAnything else?",
        f"\n{json.dumps(FIELDS, indent=2)}\n",
        JSON.replace("move to", "move\nto"),
        json.dumps({**FIELDS, "entities": [{"name": "shop", "is_new": True}]}),
        json.dumps({"decisions": ["PostgreSQL"], "entities": "shop", "summary": FIELDS["content"]}),
    ],
)
async def test_an_answer_of_json_is_read(mode, answer):
    for model in (FakeListChatModel(responses=[answer]), lambda messages, previous: answer):
        summary = await called(as_summarizer(model), mode, MESSAGES, None)

        assert summary.content == "They move to PostgreSQL."
        assert summary.decisions == ("PostgreSQL",)
        assert summary.entities == ("shop",)


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ('{"summary": "They move."}', "They move."),
        ('{"content": ["They move.", "Soon."]}', "They move. Soon."),
        ('{"总结": "They move.", "when": {"at": "Friday"}}', "They move. Friday"),
        ('["They move.", {"and": "soon"}]', "They move. soon"),
        ('"They move."', "They move."),
        ("```\nThey move.\n```", "They move."),
        ('Here it is:\n```json\n{"summary": "They move."}\n```', "They move."),
        ('Here it is:\n```json\n{"content": "They move."}\n```\nMore?', "They move."),
        ("```They move.```", "They move."),
        ('The payload is {"content": "x"}', 'The payload is {"content": "x"}'),
        ("{name} is a placeholder.", "{name} is a placeholder."),
        ("[1] They move.", "[1] They move."),
        ("42", "42"),
    ],
)
def test_an_answer_with_other_fields_or_none_is_a_text(answer, content):
    summary = as_summarizer(lambda messages, previous: answer).summarize(MESSAGES, None)

    assert summary.content == content
    assert summary.decisions == ("We decided to roll back to 2.4.0 before Friday.",)


@pytest.mark.parametrize(
    "answer",
    [JSON[:-30], f"```json\n{JSON[:40]}", f"Here:\n{JSON[:-5]}", str(FIELDS), '{"总结": "They'],
)
def test_broken_json_is_no_summary(answer):
    with pytest.raises(SummaryError, match="Raise the model's token limit"):
        as_summarizer(lambda messages, previous: answer).summarize(MESSAGES, None)


def test_an_answer_in_another_form_falls_back_to_plain_text():
    model = Structured(responses=['{"other": 1}', "plain"])

    assert ChatModelSummarizer(model).summarize(MESSAGES, None).content == "plain"


async def called(summarizer, mode, *arguments):
    found = getattr(summarizer, mode)(*arguments)
    return await found if mode == "asummarize" else found


def prompt_of(summarizer_options, messages, previous=None):
    seen = []

    def answer(prompt):
        seen.append(prompt)
        return AIMessage("done")

    ChatModelSummarizer(RunnableLambda(answer), **summarizer_options).summarize(messages, previous)
    return seen[0]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_prompt_holds_messages_and_the_previous_summary_apart(language):
    previous = Summary("It began with {messages}.", decisions=("go",))

    prompt = prompt_of({"language": language, "max_chars": 77}, [*MESSAGES, *TOOLS], previous)

    before, _, after = prompt.partition("<conversation>")
    assert "It began with {messages}.\ndecisions: go" in before
    assert "77" in before
    assert "User: Hello! The latency of order-1234" in after
    assert 'Assistant: [calls search({"query": "池' in after
    assert "Result of search: row row" in after
    assert len(after) < 3500  # a result of 20,000 characters costs 2,000


def test_the_prompt_can_be_replaced():
    text = 'Return {"a": 1} for {messages} after {previous}'
    call = ["made", SystemMessage("x")]

    assert prompt_of({"prompt": text}, MESSAGES[:1]).startswith('Return {"a": 1} for User: Hello!')
    assert prompt_of({"prompt": lambda messages, previous: call}, MESSAGES) == call


def test_the_version_is_that_of_the_prompt():
    model = FakeListChatModel(responses=["x"])
    versions = [
        ChatModelSummarizer(model, **options).prompt_version
        for options in ({}, {"language": "zh"}, {"prompt": "{messages}"}, {"prompt": called})
    ]

    assert len(set(versions)) == 4
    assert ChatModelSummarizer(model).prompt_version == versions[0]


def failing(times):
    count = iter(range(times))

    def answer(prompt):
        if next(count, None) is not None:
            raise ConnectionError("no route")
        return AIMessage("done")

    return RunnableLambda(answer)


def test_a_failure_is_retried(monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)

    assert ChatModelSummarizer(failing(2)).summarize(MESSAGES, None).content == "done"
    with pytest.raises(SummaryError, match="ConnectionError: no route"):
        ChatModelSummarizer(failing(3)).summarize(MESSAGES, None)


@pytest.mark.parametrize("mode", ["summarize", "asummarize"])
@pytest.mark.parametrize(
    "model", [failing(99), FakeListChatModel(responses=[" "])], ids=["raises", "empty"]
)
async def test_each_failure_is_one_error(mode, model):
    with pytest.raises(SummaryError):
        await called(ChatModelSummarizer(model, attempts=1), mode, MESSAGES, None)


@pytest.mark.parametrize("mode", ["summarize", "asummarize"])
async def test_a_slow_model_is_not_waited_for(mode):
    go = threading.Event()
    summarizer = ChatModelSummarizer(Slow(go=go), timeout=0.01)

    with pytest.raises(SummaryError, match=r"not ready within 0\.01 seconds"):
        await called(summarizer, mode, MESSAGES, None)
    go.set()


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": "no place for them"},
        {"prompt": 1},
        {"language": "xx"},
        {"timeout": 0},
        {"attempts": 0},
        {"max_chars": 3},
        {"max_chars": True},
    ],
)
def test_invalid_options(options):
    with pytest.raises(InvalidArgumentError):
        ChatModelSummarizer(FakeListChatModel(responses=["x"]), **options)


# -- functions, and arguments ----------------------------------------------------------


async def afunction(messages, previous):
    await asyncio.sleep(0)
    return {"content": f"{len(messages)} messages", "decisions": ["go"]}


@pytest.mark.parametrize("mode", ["summarize", "asummarize"])
@pytest.mark.parametrize(
    "function",
    [
        afunction,
        lambda messages, previous: f"{len(messages)} messages",
        lambda messages, previous: Summary(f"{len(messages)} messages", message_count=99),
    ],
    ids=["async dict", "text", "summary"],
)
async def test_functions(mode, function):
    summary = await called(as_summarizer(function), mode, MESSAGES, Summary("a", message_count=2))

    assert summary.content == "3 messages"
    assert summary.message_count == 5


@pytest.mark.parametrize("mode", ["summarize", "asummarize"])
@pytest.mark.parametrize("answer", [None, 3, "", {}, ZeroDivisionError()], ids=repr)
async def test_a_function_that_fails(mode, answer):
    def function(messages, previous):
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(SummaryError):
        await called(CallableSummarizer(function), mode, MESSAGES, None)


def test_times_of_messages_become_the_range():
    times = ["2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"]
    messages = [HumanMessage("a b", additional_kwargs={"created_at": time}) for time in times]

    first = ExtractiveSummarizer().summarize(messages, None)
    second = ExtractiveSummarizer().summarize(messages[1:], first)

    assert first.time_range == second.time_range
    assert first.time_range == ("2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00+00:00")
    assert ExtractiveSummarizer().summarize(MESSAGES, None).time_range is None


def test_arguments_become_summarizers():
    own = ExtractiveSummarizer()
    model = FakeListChatModel(responses=["x"])

    assert as_summarizer(own) is own
    assert as_summarizer(None).model == "extractive"
    assert isinstance(as_summarizer(model), ChatModelSummarizer)
    assert as_summarizer(called).model.endswith("test_summaries.called")
    assert all(isinstance(as_summarizer(each), Summarizer) for each in (None, model, called))


@pytest.mark.parametrize("given", ["gpt", 3, ExtractiveSummarizer, object()])
def test_other_arguments_are_refused(given):
    with pytest.raises(InvalidArgumentError):
        as_summarizer(given)
