"""SGLang's form of ``/generate`` means the same as our own, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from pdcore.engine.requests import GenerationRequest, parse
from pdcore.errors import ApiError

pytestmark = pytest.mark.unit


def parsed(**body: Any) -> GenerationRequest:
    return parse("generate", body, vocab_size=100)


def refused(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(**body)
    assert caught.value.code == "invalid_request"
    return caught.value


PARAMETERS = {
    "temperature": 0.5,
    "max_new_tokens": 9,
    "min_new_tokens": 2,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "presence_penalty": 1,
    "stop": ["x"],
    "ignore_eos": True,
    "sampling_seed": 4,
    "n": 2,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}


def test_it_is_what_our_own_form_says() -> None:
    own = {
        "prompt": ["a", "b"],
        "temperature": 0.5,
        "max_tokens": 9,
        "min_tokens": 2,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 1,
        "stop": ["x"],
        "ignore_eos": True,
        "seed": 4,
        "n": 2,
        "logprobs": 3,
        "stream": True,
    }
    theirs = parsed(
        text=["a", "b"], sampling_params=PARAMETERS, return_logprob=True, top_logprobs_num=3, stream=True
    )
    ours = parsed(**own)
    assert theirs.is_sglang
    assert not ours.is_sglang
    assert {
        name: getattr(theirs, name) for name in ("prompts", "samples", "sampling", "seed", "stop", "stream")
    } == {name: getattr(ours, name) for name in ("prompts", "samples", "sampling", "seed", "stop", "stream")}
    assert (theirs.max_tokens, theirs.min_tokens, theirs.ignore_eos) == (9, 2, True)


@pytest.mark.parametrize(
    ("body", "prompts"),
    [
        ({"text": "a"}, ("a",)),
        ({"text": ["a", "b"]}, ("a", "b")),
        ({"input_ids": [1, 2]}, ((1, 2),)),
        ({"input_ids": [[1], [2]]}, ((1,), (2,))),
        ({"prompt": "a", "sampling_params": {}}, ("a",)),
    ],
)
def test_prompts_have_either_name_and_its_own_default_length(body: dict[str, Any], prompts: object) -> None:
    request = parsed(**body)
    assert (request.prompts, request.max_tokens, request.sampling.top_logprobs) == (prompts, 128, None)


def test_one_set_of_parameters_for_each_prompt_must_be_the_same() -> None:
    assert parsed(text=["a", "b"], sampling_params=[{"top_k": 3}] * 2).sampling.top_k == 3
    assert refused(text=["a", "b"], sampling_params=[{}]).param == "sampling_params"
    assert refused(text=["a", "b"], sampling_params=[{}, {"n": 2}]).param == "sampling_params[1]"
    assert refused(text=["a"], sampling_params=[3]).param == "sampling_params[0]"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": "a", "prompt": "b"}, "text"),
        ({"sampling_params": {}}, "text"),
        ({"text": ""}, "text"),
        ({"text": 5}, "text"),
        ({"text": [[1]]}, "text"),
        ({"input_ids": ["a"]}, "input_ids"),
        ({"input_ids": "a"}, "input_ids"),
        ({"input_ids": [100]}, "input_ids"),
        ({"text": "a", "sampling_params": 5}, "sampling_params"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": [{"top_k": "x"}]}, "sampling_params.top_k"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"text": "a", "sampling_params": {"json_schema": "{}"}}, "sampling_params.json_schema"),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "return_logprob": 1}, "return_logprob"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"text": "a", "resume": {}}, "resume.output_ids"),
    ],
)
def test_what_it_cannot_mean_is_refused(body: dict[str, Any], param: str) -> None:
    assert refused(**body).param == param


@pytest.mark.parametrize(
    ("given", "param", "hint"),
    [
        ({"temprature": 0.5}, "sampling_params.temprature", "did you mean 'temperature'?"),
        ([{"max_token": 5}], "sampling_params.max_token", "did you mean 'max_tokens'?"),
        ({"wat": 0}, "sampling_params.wat", "is nothing that this engine knows"),
        ({"structural_tag": "{}"}, "sampling_params.structural_tag", "does not support"),
        ({"x" * 999: 1}, f"sampling_params.{'x' * 64}", "is nothing that this engine knows"),
    ],
)
def test_a_parameter_that_would_change_nothing_is_refused_by_name(
    given: object, param: str, hint: str
) -> None:
    error = refused(text="a", sampling_params=given)
    assert error.param == param
    assert hint in error.message
    assert len(error.message) < 200


def test_a_parameter_that_is_null_is_not_given() -> None:
    assert parsed(text="a", sampling_params={"wat": None, "top_k": 3}).sampling.top_k == 3
