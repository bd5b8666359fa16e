/* ops/text/tool_calls.h: the calls of tools that a model's turn holds.
 *
 * Which form a model writes follows from its chat template:
 *
 *   Hermes   <tool_call>{"name": "f", "arguments": {...}}</tool_call>, any number of them among text (Hermes,
 *            Qwen2.5, Qwen3); also where the template is of no family here. The same with tags inside:
 *            <tool_call><function=f><parameter=x>\n1\n</parameter></function></tool_call> (Qwen3-Coder,
 * Qwen3.5). What stands in a tag has no type: an argument is a text, but for lists and objects of JSON Llama
 * the whole turn is {"name": "f", "parameters": {...}}, behind <|python_tag|> or not; several are parted by
 * ';' (Llama-3.1 and later) Harmony  messages by channels; one that has a recipient is a call:
 * <|channel|>commentary to=functions.f
 *            <|constrain|>json<|message|>{...}<|call|>, or with the recipient before its channel (gpt-oss)
 *
 * Threads: any.
 */
#ifndef GR_OPS_TEXT_TOOL_CALLS_H
#define GR_OPS_TEXT_TOOL_CALLS_H

#include <jansson.h>

#include "ops/text/chat_template.h"

typedef enum gr_tool_form { GR_TOOLS_HERMES, GR_TOOLS_LLAMA, GR_TOOLS_HARMONY } gr_tool_form;

/* template NULL: Hermes. */
gr_tool_form gr_tool_form_of(const gr_chat_template *t);

/* A list, in the order of the text: {"name": TEXT, "arguments": OBJECT} of a call, and of one that cannot be
 * read {"error": why, "text": what was there}. The caller frees it. */
json_t *gr_tool_calls(gr_tool_form form, const char *text, size_t n);

/* Bytes of a text with calls that stand before the first one. */
size_t gr_tool_calls_at(gr_tool_form form, const char *text, size_t n);

#endif
