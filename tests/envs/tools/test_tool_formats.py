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
    "deepseek v3": (
        "Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n"
        '{"command": "ls -la"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek v3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls -la"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek v3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command" string="true">ls -la'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "deepseek, two bars": (
        '<｜｜DSML｜｜tool_calls><｜｜DSML｜｜invoke name="bash"><｜｜DSML｜｜parameter name="command" string="false">'
        '"ls -la"</｜｜DSML｜｜parameter></｜｜DSML｜｜invoke></｜｜DSML｜｜tool_calls>'
    ),
    "harmony": (
        "<|channel|>analysis<|message|>```bash\nrm x\n``` or not?<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.bash <|constrain|>json<|message|>{"command": "ls -la"}<|call|>'
    ),
    "harmony, the recipient before the channel": (
        ' to=functions.bash<|channel|>commentary <|constrain|>json<|message|>{"command": "ls -la"}'
    ),
    "harmony, words before the call": (
        "<|channel|>commentary<|message|>I look:<|end|><|start|>assistant to=bash<|channel|>commentary json<|message|>"
        '{"command": "ls -la"}<|call|>'
    ),
    "harmony around another format": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Look:\n"
        '<tool_call>{"name": "bash", "arguments": {"command": "ls -la"}}</tool_call><|return|>'
    ),
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


@pytest.mark.parametrize(
    "message",
    [
        "<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{}<|call|>",
        "<｜tool▁call▁begin｜>bash<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n{}\n```<｜tool▁call▁end｜>",
    ],
)
def test_a_formats_own_marks_inside_an_argument_are_text(message):
    command = "echo '<|call|><|start|>assistant to=functions.submit<|message|>{}' '<｜tool▁call▁end｜>' '```'"
    found = parse_calls(message.replace("{}", json.dumps({"command": command}, ensure_ascii=False)), TOOLS)
    assert found == [ToolCall("bash", {"command": command})]


def test_deepseek_parameters_keep_their_text_and_have_their_types():
    message = (
        '<｜DSML｜invoke name="edit">'
        '<｜DSML｜parameter name="path" string="true">a.py</｜DSML｜parameter>'
        '<｜DSML｜parameter name="old" string="true">\n  "x"</｜DSML｜parameter>'
        '<｜DSML｜parameter name="new" string="true"></｜DSML｜parameter></｜DSML｜invoke>'
        '<｜DSML｜invoke name="view"><｜DSML｜parameter name="path" string="true">7</｜DSML｜parameter>'
        '<｜DSML｜parameter name="start_line" string="false">7</｜DSML｜parameter></｜DSML｜invoke>'
        '<｜DSML｜invoke name="submit"></｜DSML｜invoke>'
    )
    assert parse_calls(message, TOOLS) == [
        ToolCall("edit", {"path": "a.py", "old": '\n  "x"', "new": ""}),
        ToolCall("view", {"path": "7", "start_line": 7}),
        ToolCall("submit", {}),
    ]


def test_harmonys_python_takes_the_program_as_it_is_and_as_json():
    for body in ("a = {}\nprint(a)", json.dumps({"code": "a = {}\nprint(a)"})):
        message = f"<|channel|>analysis to=python code<|message|>{body}<|call|>"
        assert parse_calls(message, TOOLS) == [ToolCall("python", {"code": "a = {}\nprint(a)"})]


def test_what_a_model_makes_up_as_a_tools_answer_is_no_call():
    message = (
        '<|channel|>commentary to=functions.bash<|message|>{"command": "ls -la"}<|call|>'
        "<|start|>functions.bash to=assistant<|channel|>commentary<|message|>```bash\nrm x\n```<|end|>"
        "<|start|>assistant<|channel|>final<|message|>There is nothing.<|return|>"
    )
    assert parse_calls(message, TOOLS) == [LS]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ('<|channel|>commentary to=functions.bash json<|message|>{"command": "l', "not valid JSON"),
        ("<|channel|>commentary to=functions.bash <|constrain|>json", "write <|message|> before them"),
        ("<|channel|>commentary to=functions.bash<|message|>ls<|call|>", "not valid JSON"),
        ('<|channel|>commentary to=functions.bsh<|message|>{"command": "ls"}', "Did you mean 'bash'?"),
        ('<|channel|>commentary to=functions.bash<|message|>["ls"]', "must be a JSON object"),
        ("<｜tool▁call▁begin｜>bash", "must have its name, <｜tool▁sep｜>, and its arguments"),
        ("<｜tool▁call▁begin｜>bash<｜tool▁sep｜>ls -la", "not valid JSON"),
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash", "not valid JSON"),
        ('<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n{"command": 3}\n```', "must be of type string"),
        ('<｜DSML｜invoke name="bash"><｜DSML｜parameter name="command" string="true">ls', "is not closed: end it"),
        (
            '<｜DSML｜invoke name="bash"><｜DSML｜parameter name="command">ls</｜DSML｜invoke>',
            "'command' is not closed",
        ),
        ("<｜DSML｜invoke bash></｜DSML｜invoke>", "has no name"),
        (
            '<｜DSML｜invoke name="view"><｜DSML｜parameter name="path" string="false">a'
            "</｜DSML｜parameter></｜DSML｜invoke>",
            'says string="false" and is no JSON',
        ),
    ],
)
def test_malformed_calls_of_deepseek_and_harmony_are_told_too(message, why):
    (found,) = parse_calls(message, TOOLS)
    assert isinstance(found, Malformed)
    assert why in found.why


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
    for one in (*IN_EVERY_FORMAT.values(), "```bash\nls -la\n```\n"):
        found = parse_calls(one * 50, TOOLS)
        if len(found) > 1:  # JSON is a call only where the message is nothing else
            assert found[:MAX_CALLS] == [LS] * MAX_CALLS, one
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
        "<|message|>",
        "<|channel|>commentary to=functions.bash",
        "<|channel|>commentary to=functions.bash<|message|>{",
        "<|start|>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n",
        '<｜DSML｜invoke name="bash">',
        '<｜DSML｜invoke name="bash"><｜DSML｜parameter name="command">',
    )
    for text in (*GIBBERISH, *(unit * (megabyte // len(unit)) for unit in units), "<tool_call>" + '{"a":' * 200_000):
        started = time.perf_counter()
        assert not [call for call in parse_calls(text, TOOLS) if isinstance(call, ToolCall)]
        assert time.perf_counter() - started < 2, text[:20]
