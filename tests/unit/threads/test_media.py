"""Pictures and files in blocks of messages."""

import base64

import pytest
from kit.graphs_to_look_at import PIXEL

from threadkeep.threads.media import Medium, encoded, medium

PNG = Medium("image/png", PIXEL)
URL = f"data:image/png;base64,{PIXEL}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": PIXEL}


@pytest.mark.parametrize(
    ("block", "want"),
    [
        ({"type": "image_url", "image_url": {"url": URL}}, PNG),
        ({"type": "image_url", "image_url": URL}, PNG),
        ({"type": "input_image", "image_url": URL}, PNG),
        ({"type": "image", "source": SOURCE}, PNG),
        ({"type": "tool_result_image", "image": {"source": SOURCE}}, PNG),
        ({"type": "image", "base64": PIXEL, "mime_type": "image/png"}, PNG),
        ({"type": "media", "data": PIXEL, "mime_type": "image/png"}, PNG),
        (
            {"image": {"format": "png", "source": {"bytes": base64.b64decode(PIXEL)}}},
            Medium("png", PIXEL),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            Medium("wav", "AAAA"),
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}},
            Medium("application/pdf", "JVBERi0="),
        ),
        (
            {"type": "image", "url": "https://example.com/a.png"},
            Medium("", url="https://example.com/a.png"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>"}},
            Medium("", url="data:image/svg+xml,<svg/>"),
        ),
        ({"type": "image_url", "image_url": {"url": ""}}, None),
        ({"type": "citation", "page": 3}, None),
    ],
)
def test_forms_of_pictures_and_files(block, want):
    assert medium(block) == want


def test_a_picture_is_one_by_its_first_bytes():
    def of(data):
        return Medium("image/png", base64.b64encode(data).decode()).bitmap

    assert PNG.title == "image/png, 70 bytes"
    assert of(b"RIFF\0\0\0\0WEBPVP8 ") == "image/webp"
    assert of(b"GIF89a..........") == "image/gif"
    assert of(b"\xff\xd8\xff\xe0........") == "image/jpeg"
    assert of(b"<svg onload='alert(1)'/>") == ""
    assert Medium("image/png", "no base64").bitmap == ""
    assert PNG.is_sound
    assert not Medium("image/png", f"{PIXEL}\"onerror='x'").is_sound


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (URL, "image/png, 70 bytes"),
        (PIXEL, "image/png, 70 bytes"),
        ("aB3" * 400, "base64, 900 bytes"),
        ("DATA:text/html;charset=utf-8;base64,PHA+", "text/html, 3 bytes"),
        ("data:text/plain;base64,no words", None),
        ("word" * 100, None),
        (f"{PIXEL} and a text", None),
        ("", None),
    ],
)
def test_texts_that_are_data(text, title):
    found = encoded(text)
    assert (found and found.title) == title
