"""What transformers makes of conversations: `python torch_chat.py CASES.json OUT.json`, by a Python that has it.

A case is [template, messages, add_generation_prompt]; its result is [text, [[begin, end], ...]] of the assistant's
words, where the template marks them.
"""

import json
import sys


def main(cases, out):
    from transformers.utils.chat_template_utils import render_jinja_template

    results = []
    for template, messages, prompt in json.load(open(cases)):
        texts, spans = render_jinja_template(
            [messages],
            chat_template=template,
            add_generation_prompt=prompt,
            return_assistant_tokens_mask="{% generation" in template,
            bos_token="<s>",
        )
        results.append([texts[0], [list(span) for span in spans[0]] if spans else []])
    json.dump(results, open(out, "w"))


if __name__ == "__main__":
    main(*sys.argv[1:])
