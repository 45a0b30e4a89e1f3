"""The inbox: a page of limited size, however many and long the questions are."""

import re

import pytest
from kit.asgi import Client
from kit.graphs_to_look_at import asks, named
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

from threadkeep import MemorySaver
from threadkeep.ui import app


def ask(question):
    interrupt(question)


@pytest.fixture
def page_of():
    """Ask questions, each in a task of one thread, and return a client of the page."""
    with MemorySaver() as saver:

        def page(*questions):
            builder = StateGraph(MessagesState)
            builder.add_node("ask", ask)
            sends = [Send("ask", one) for one in questions]
            builder.add_conditional_edges(START, lambda _: sends, ["ask"])
            builder.compile(checkpointer=saver).invoke(asks("Go"), named("t"))
            return Client(app(saver, authorize=lambda _: "ann", write=True))

        yield page


def test_every_question_has_its_turn(page_of):
    client = page_of(*[{"n": number, "text": "x" * 90_000} for number in range(25)])
    html = client.get("/inbox").text
    assert html.count('class="question"') == 20
    assert "5 more questions are shown once these are answered." in html
    assert len(html) < 1_200_000
    csrf = html.partition('"x-threadkeep": "')[2].partition('"')[0]
    for path in re.findall(r'hx-post="([^"]*)"', html)[:5]:
        answer = client("POST", path.replace("&amp;", "&"), content="answer=yes", x_threadkeep=csrf)
        assert answer.status_code == 200
    html = client.get("/inbox").text
    assert (html.count('class="question"'), html.count("Change the answer")) == (20, 0)
    assert ">24<" in html


def test_arguments_that_are_cut_cannot_be_edited(page_of):
    review = {"action_name": "save", "allowed_decisions": ["approve", "edit"]}
    actions = [{"name": "save", "args": {"text": "y" * size}} for size in (1000, 200_000)]
    html = page_of({"action_requests": actions, "review_configs": [review]}).get("/inbox").text
    assert [f'name="args-{at}"' in html for at in (0, 1)] == [True, False]
    assert html.count('value="edit"') == 1
    assert html.count("All of it") == 1
    assert len(html) < 150_000
