"""Tool calls in the chat formats of current models: the same call in each, and answers to what is none."""

import json
import time

import pytest

from rollcage.envs.attacks import GIBBERISH
from rollcage.envs.tools import BASH, EDIT, PYTHON, SUBMIT, VIEW, Malformed, ToolCall, parse_calls
from rollcage.envs.tools.formats import MAX_CALLS

TOOLS = (BASH, PYTHON, VIEW, EDIT, SUBMIT)
LS = ToolCall("bash", {"command": "ls -la"})

IN_EVERY_FORMAT = {
    "json in tags": '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>',
    "the closing tag is a stop sequence": '<tool_call>{"name": "bash", "arguments": {"command": "ls -la"}}',
    "prose around it": 'Look:\n<tool_call>{"name": "bash", "arguments": {"command": "ls -la"}}</tool_call>\nWell.',
    "after thinking": '<think>```bash\nrm x\n```</think><tool_call>{"name":"bash","arguments":{"command":"ls -la"}}',
    "called parameters": '<tool_call>{"name": "bash", "parameters": {"command": "ls -la"}}</tool_call>',
    "called input": '<tool_call>{"name": "bash", "input": {"command": "ls -la"}}</tool_call>',
    "arguments in a string": json.dumps({"name": "bash", "arguments": json.dumps({"command": "ls -la"})}),
    "under function": '<tool_call>{"function": {"name": "bash", "arguments": {"command": "ls -la"}}}</tool_call>',
    "tags in tags": "<tool_call>\n<function=bash>\n<parameter=command>\nls -la\n</parameter></function>\n</tool_call>",
    "tags alone": "<function=bash><parameter=command>ls -la</parameter></function>",
    "a list after a mark": '[TOOL_CALLS][{"name": "bash", "arguments": {"command": "ls -la"}}]',
    "an object after a mark": '<|python_tag|>{"name": "bash", "parameters": {"command": "ls -la"}}',
    "nothing but json": ' {"name": "bash", "parameters": {"command": "ls -la"}}\n',
    "a code block": "I look.\n\n```bash\nls -la\n```\n",
    "a shell's block": "```sh\nls -la\n```",
    "waved": "~~~shell\nls -la\n~~~",
    "json in a code block": '```json\n{"name": "bash", "arguments": {"command": "ls -la"}}\n```',
}


@pytest.mark.parametrize("message", IN_EVERY_FORMAT.values(), ids=IN_EVERY_FORMAT)
def test_the_same_call_in_every_format(message):
    assert parse_calls(message, TOOLS) == [LS]


def test_several_calls_keep_their_order_and_a_broken_one_its_place():
    message = (
        '<tool_call>{"name": "bash", "arguments": {"command": "ls -la"}}</tool_call>'
        '<tool_call>{"name": "bash", "arguments": {"command": </tool_call>'
        '<tool_call>{"name": "submit", "arguments": {}}</tool_call>'
    )
    assert parse_calls(message, TOOLS) == [
        LS,
        Malformed("the call is not valid JSON (Expecting value)"),
        ToolCall("submit", {}),
    ]


def test_tags_and_code_blocks_inside_an_argument_are_text():
    command = "cat <<'END'\n</tool_call>\n```bash\nrm x\n```\nEND"
    message = f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"
    assert parse_calls(message, TOOLS) == [ToolCall("bash", {"command": command})]


def test_line_ends_in_json_strings_are_taken_as_models_write_them():
    message = '<tool_call>{"name": "python", "arguments": {"code": "a = 1\nprint(a)"}}</tool_call>'
    assert parse_calls(message, TOOLS) == [ToolCall("python", {"code": "a = 1\nprint(a)"})]


def test_formats_without_types_have_them_read_from_the_schema():
    head = "<function=view><parameter=path>a.py</parameter><parameter=start_line>"
    tail = "</parameter></function>"
    assert parse_calls(f"{head} 7 {tail}", TOOLS) == [ToolCall("view", {"path": "a.py", "start_line": 7})]
    (bad,) = parse_calls(f"{head}seven{tail}", TOOLS)
    assert bad == Malformed("the argument 'start_line' of view must be of type integer")
    assert parse_calls('{"name": "view", "arguments": {"path": "a", "start_line": "7"}}', TOOLS) == [bad]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ('{"name": "bsh", "arguments": {}}', "Did you mean 'bash'?"),
        ('{"name": "bash", "arguments": {}}', "bash needs the argument 'command'"),
        (
            '{"name": "bash", "arguments": {"command": "ls", "cmd": 1}}',
            "bash has no argument 'cmd' (it takes: command)",
        ),
        ('{"name": "bash", "arguments": {"command": 3}}', "must be of type string"),
        ('{"name": "bash", "arguments": ["ls"]}', "the arguments of bash must be a JSON object"),
        ('{"name": "bash", "arguments": {"command": "a\\u0000b"}}', "a NUL character"),
        ('{"name": "bash", "arguments": {"command": "\\ud800"}}', "half of a surrogate pair"),
        ('{"arguments": {"command": "ls"}}', 'the call has no "name"'),
        ('"ls"', 'must be a JSON object with "name" and "arguments"'),
        ("{'name': 'bash'}", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": ' + "9" * 10_000 + "}", "a number is too long"),
        ("<function=bash><parameter=command>ls", "is not closed: end it with </function>"),
    ],
)
def test_a_malformed_call_is_told_in_words_that_a_model_can_use(call, why):
    (found,) = parse_calls(f"<tool_call>{call}</tool_call>", TOOLS)
    assert isinstance(found, Malformed)
    assert why in found.why
    assert len(found.why) < 300
    assert "\n" not in found.why
    found.why.encode()


def test_a_message_without_a_call_holds_none():
    for message in ("", "I would run ls.", "```\nls\n```", "```json\n[1, 2]\n```", '{"a": 1}', "```yaml\na: b\n```"):
        assert parse_calls(message, TOOLS) == []


def test_a_code_block_calls_only_a_tool_that_is_declared():
    assert parse_calls("```python\nprint(1)\n```", (BASH, SUBMIT)) == []


def test_an_open_code_block_is_not_run_for_it_may_be_cut_short():
    (found,) = parse_calls("```bash\nrm -rf build", TOOLS)
    assert found == Malformed("the code block is not closed: end it with ```")


def test_so_many_calls_and_no_more():
    found = parse_calls("```bash\nls -la\n```\n" * 50, TOOLS)
    assert found[:MAX_CALLS] == [LS] * MAX_CALLS
    assert len(found) == MAX_CALLS + 1
    assert "left out" in found[-1].why


def test_any_text_at_all_is_answered_at_once():
    megabyte = 1 << 20
    units = (
        "<tool_call>",
        '<tool_call>{"',
        "<function=a>",
        "<function=a><parameter=b>",
        "```bash\n",
        "[TOOL_CALLS]",
        "[",
    )
    for text in (*GIBBERISH, *(unit * (megabyte // len(unit)) for unit in units), "<tool_call>" + '{"a":' * 200_000):
        started = time.perf_counter()
        assert not [call for call in parse_calls(text, TOOLS) if isinstance(call, ToolCall)]
        assert time.perf_counter() - started < 2, text[:20]
