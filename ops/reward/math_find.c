/* ops/reward/math_find.c: boxes, formulas, announcements and numbers in a response. */
#include "ops/reward/math_find.h"

#include <stddef.h>
#include <stdlib.h>
#include <strings.h>

#include "ops/reward/math_compare.h"

/* A box or formula: all of it, and what it holds. */
struct find {
    gr_span whole, inside;
};

static bool find_box(gr_span text, size_t from, struct find *out)
{
    for (size_t i = from; i < text.n; i++) {
        gr_span s = gr_span_skip(text, i);
        size_t name = gr_span_starts(s, "\\boxed") ? 6 : gr_span_starts(s, "\\fbox") ? 5 : 0;
        if (!name || !gr_span_starts(gr_span_trim(gr_span_skip(s, name)), "{")) continue;
        gr_span group = gr_span_trim(gr_span_skip(s, name));
        group.n = GR_MIN(group.n, GR_MATH_BYTES);
        size_t n = gr_span_group(group);
        if (!n) continue;
        *out = (struct find){{s.p, (size_t)(group.p - s.p) + n}, {group.p + 1, n - 2}};
        return true;
    }
    return false;
}

bool gr_math_boxed(const char *text, size_t n_text, size_t *from, size_t *n)
{
    struct find f;
    bool any = false;
    for (size_t i = 0; find_box((gr_span){text, n_text}, i, &f); any = true) {
        *from = (size_t)(f.inside.p - text);
        *n = f.inside.n;
        i = (size_t)(f.whole.p + f.whole.n - text);
    }
    return any;
}

/* Between dollars stands prose, not a formula, where two words of three letters follow each other. */
bool gr_math_is_prose(gr_span s)
{
    size_t words = 0;
    for (; s.n; s = gr_span_skip(s, 1)) {
        if (*s.p == '\\') {
            s = gr_span_skip(s, gr_span_word(gr_span_skip(s, 1)));
            words = 0;
            continue;
        }
        size_t n = gr_span_word(s);
        if (n >= 3 && ++words == 2) return true;
        if (n)
            s = gr_span_skip(s, n - 1);
        else if (*s.p != ' ')
            words = 0;
    }
    return false;
}

/* Between ** stands an answer, not a heading: no word of three letters, and something to compare. */
static bool is_bold_answer(gr_span s)
{
    bool any = false, word = false;
    for (; s.n && !word; s = gr_span_skip(s, GR_MAX(gr_span_word(s), (size_t)1))) {
        any |= isalnum((unsigned char)*s.p) != 0;
        if (*s.p == '\\')
            s = gr_span_skip(s, gr_span_word(gr_span_skip(s, 1)));
        else
            word = gr_span_word(s) >= 3;
    }
    return any && !word;
}

/* Bytes of a number that s starts with: digits with points, thousands and a fraction. */
static size_t number_of(gr_span s)
{
    size_t n = gr_span_starts(s, "-");
    n += gr_span_starts(gr_span_skip(s, n), ".");
    if (n == s.n || !isdigit((unsigned char)s.p[n])) return 0;
    while (n < s.n && s.p[n] && (isdigit((unsigned char)s.p[n]) || strchr(".,/", s.p[n]))) n++;
    while (!isdigit((unsigned char)s.p[n - 1])) n--;
    return n;
}

/* Between two dollars stands money, not a formula: another line, a digit after the second, or a number and
 * more after the first and a space before the second. */
static bool is_money(gr_span inside, gr_span rest)
{
    if (memchr(inside.p, '\n', inside.n) || (rest.n && isdigit((unsigned char)*rest.p))) return true;
    return gr_span_trim(inside).n > number_of(inside) && isdigit((unsigned char)*inside.p) &&
           isspace((unsigned char)inside.p[inside.n - 1]);
}

/* What stands between two fences is an answer. */
static bool is_formula(const char *fence, gr_span inside, gr_span rest)
{
    if (!inside.n) return false;
    if (!strcmp(fence, "**")) return is_bold_answer(inside);
    return !gr_math_is_prose(inside) && (strcmp(fence, "$") != 0 || !is_money(inside, rest));
}

/* Where a fence closes in s, one that no backslash stands in front of; s.n where nowhere. */
static size_t find_fence(gr_span s, const char *fence)
{
    gr_span near = {s.p, GR_MIN(s.n, GR_MATH_BYTES)};
    size_t n = gr_span_find(near, fence);
    while (n && n < near.n && *fence == '$' && s.p[n - 1] == '\\')
        n += 1 + gr_span_find(gr_span_skip(near, n + 1), fence);
    return n < near.n ? n : s.n;
}

/* The formula that text begins with. */
static bool formula_at(gr_span text, struct find *out)
{
    static const char *const fences[][2] = {
        {"$$", "$$"}, {"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}, {"**", "**"}};
    bool found = false;
    for (size_t k = 0; k < GR_LEN(fences) && !found; k++) {
        size_t n = strlen(fences[k][0]);
        if (!gr_span_starts(text, fences[k][0])) continue;
        gr_span rest = gr_span_skip(text, n), inside = {rest.p, find_fence(rest, fences[k][1])};
        if (inside.n == rest.n) continue;
        found = is_formula(fences[k][0], inside, gr_span_skip(rest, inside.n + n));
        if (found) *out = (struct find){{text.p, inside.n + 2 * n}, inside};
    }
    return found;
}

static bool find_formula(gr_span text, size_t from, struct find *out)
{
    bool found = false;
    for (size_t i = from; i < text.n && !found; i++) {
        if (gr_span_starts(gr_span_skip(text, i), "\\$")) i += 2;
        found = formula_at(gr_span_skip(text, i), out);
    }
    return found;
}

/* s without the words that \text{} holds. */
static void without_text(gr_span s, gr_str *out)
{
    for (size_t n; s.n; s = gr_span_skip(s, n)) {
        gr_span group = gr_span_skip(s, 5);
        n = gr_span_starts(s, "\\text{") ? 5 + GR_MAX(gr_span_group(group), (size_t)1) : 1;
        if (n == 1) gr_str_putc(out, *s.p);
    }
}

/* "y_2 =": the name of the part that follows. */
static gr_span without_name(gr_span s)
{
    if (!s.n || s.p[s.n - 1] != '=') return s;
    s.n--;
    while (s.n && (isalnum((unsigned char)s.p[s.n - 1]) || strchr("_{}", s.p[s.n - 1])) && s.p[s.n - 1])
        s.n--;
    return s;
}

/* "papers and": a unit of one word in front of a connecting one. */
static gr_span without_unit(gr_span s)
{
    gr_span unit = gr_span_trim(s), rest = gr_span_trim(gr_span_skip(unit, gr_span_word(unit)));
    gr_span joint = {rest.p, gr_span_word(rest)};
    return gr_span_is(joint, "and") || gr_span_is(joint, "or") ? rest : s;
}

/* Nothing but connecting words between two parts of one answer. */
static bool is_gap(gr_span s)
{
    gr_str rest = {0}, normal = {0};
    if (s.n > 200) return false;
    without_text(without_unit(s), &rest);
    gr_math_normalise((gr_span){rest.text, rest.len}, &normal);
    gr_span left = without_name((gr_span){normal.text, normal.len});
    bool gap = true;
    for (size_t i = 0; i < left.n && gap; i++) gap = strchr(",;$", left.p[i]) != NULL;
    gr_str_release(&rest);
    gr_str_release(&normal);
    return gap;
}

/* The last finds of a text that only connecting words part, joined by commas. */
static bool last_finds(gr_span text, bool (*next)(gr_span, size_t, struct find *), gr_str *out,
                       const char **end)
{
    struct find f;
    *end = text.p;
    for (size_t i = 0; next(text, i, &f); i = (size_t)(*end - text.p)) {
        gr_span gap = {*end, (size_t)(f.whole.p - *end)};
        if (!out->len || !is_gap(gap)) out->len = 0;
        if (out->len) gr_str_putc(out, ',');
        gr_str_add(out, f.inside.p, f.inside.n);
        *end = f.whole.p + f.whole.n;
    }
    return out->len > 0;
}

/* The finds that a text begins with, after marks alone, and those that only connecting words part from them.
 */
static bool leading_finds(gr_span text, bool (*next)(gr_span, size_t, struct find *), gr_str *out)
{
    struct find f;
    size_t marks = 0;
    while (marks < text.n && strchr(" \t\n\r:*", text.p[marks]) && text.p[marks]) marks++;
    out->len = 0;
    const char *end = text.p + marks;
    while (next(text, (size_t)(end - text.p), &f)) {
        gr_span gap = {end, (size_t)(f.whole.p - end)};
        if (out->len ? !is_gap(gap) : gap.n > 0) break;
        if (out->len) gr_str_putc(out, ',');
        gr_str_add(out, f.inside.p, f.inside.n);
        end = f.whole.p + f.whole.n;
    }
    return out->len > 0;
}

/* ---- announcements ------------------------------------------------------------------------------------ */

static gr_span skip_marks(gr_span s)
{
    while (s.n && strchr(" \t\n\r:*_", *s.p) && *s.p) s = gr_span_skip(s, 1);
    return s;
}

/* s without what stands around an answer in Markdown. */
static gr_span without_marks(gr_span s)
{
    s = gr_span_trim(s);
    while (s.n && strchr("*_`", *s.p) && *s.p) s = gr_span_trim(gr_span_skip(s, 1));
    while (s.n && strchr("*_`", s.p[s.n - 1]) && s.p[s.n - 1]) s.n--;
    return gr_span_trim(s);
}

/* What the last <answer>...</answer> holds, else s. */
static gr_span tagged(gr_span s)
{
    gr_span found = s;
    size_t open, close;
    for (gr_span rest = s; (open = gr_span_find(rest, "<answer>")) < rest.n;
         rest = gr_span_skip(rest, close)) {
        rest = gr_span_skip(rest, open + 8);
        close = gr_span_find(rest, "</answer>");
        if (close < rest.n) found = (gr_span){rest.p, close};
    }
    return found;
}

/* Bytes of "answer is" or "answer:" that s starts with, with marks and up to 60 bytes of one sentence in it;
 * 0 where it starts with none. */
static size_t announcement_of(gr_span s)
{
    if (s.n < 7 || strncasecmp(s.p, "answer", 6) != 0) return 0;
    size_t n = 0;
    for (size_t i = 6; i < GR_MIN(s.n, (size_t)66) && !n && !strchr(".\n$\\=", s.p[i]); i++) {
        gr_span rest = gr_span_skip(s, i);
        bool is =
            gr_span_starts(rest, " is ") || gr_span_starts(rest, " is:") || gr_span_starts(rest, " is\n");
        if (*rest.p == ':' || is) n = i + (is ? 3 : 1);
    }
    return n;
}

/* "####" on the last line: what stands after it. */
static const char *after_hashes(gr_span text)
{
    text = gr_span_trim(text);
    size_t n = text.n;
    while (n && text.p[n - 1] != '\n') n--;
    gr_span last = gr_span_skip(text, n);
    size_t hashes = gr_span_find(last, "####");
    return hashes < last.n ? last.p + hashes + 4 : NULL;
}

/* What follows the last announcement, NULL where nothing does. */
static const char *after_announcement(gr_span text)
{
    const char *found = after_hashes(text);
    if (found) return found;
    for (gr_span s = text; s.n; s = gr_span_skip(s, 1)) {
        size_t n = announcement_of(s);
        if (n && skip_marks(gr_span_skip(s, n)).n) found = s.p + n;
    }
    return found;
}

/* The first line or sentence of what was announced. */
static gr_span sentence_of(gr_span s)
{
    s = skip_marks(s);
    size_t n = 0;
    while (n < s.n && s.p[n] != '\n' &&
           !(s.p[n] == '.' && (n + 1 == s.n || isspace((unsigned char)s.p[n + 1]))))
        n++;
    return n ? (gr_span){s.p, n} : s;
}

/* ---- numbers in words --------------------------------------------------------------------------------- */

/* Bytes of "or", "and" or a comma, with spaces, between two numbers; 0: something else. */
static size_t joint_of(gr_span s)
{
    static const char *const joints[] = {", or ", ", and ", " or ", " and ", ", "};
    size_t n = 0;
    for (size_t i = 0; i < GR_LEN(joints) && !n; i++)
        if (gr_span_starts(s, joints[i])) n = strlen(joints[i]);
    return n && number_of(gr_span_skip(s, n)) ? n : 0;
}

/* Bytes of numbers that joints part. */
static size_t numbers_of(gr_span s)
{
    size_t n = number_of(s), joint;
    while (n && (joint = joint_of(gr_span_skip(s, n)))) n += joint + number_of(gr_span_skip(s, n + joint));
    return n;
}

/* What follows a number that stands alone. */
static bool ends_number(gr_span rest)
{
    if (!rest.n || (unsigned char)*rest.p <= ' ' || strchr("*%", *rest.p)) return true;
    return *rest.p == '.' && (rest.n == 1 || (unsigned char)rest.p[1] <= ' ');
}

/* The last numbers of words that do not belong to a word; all of them must stand alone where alone is set. */
static gr_span last_numbers(gr_span words, bool alone)
{
    gr_span found = {words.p, 0};
    bool in_word = false;
    for (gr_span s = words; s.n;) {
        size_t n = in_word ? 0 : numbers_of(s);
        gr_span rest = gr_span_skip(s, GR_MAX(n, (size_t)1));
        if (n && (!alone || ends_number(rest))) found = (gr_span){s.p, n};
        in_word = isalnum((unsigned char)s.p[GR_MAX(n, (size_t)1) - 1]) != 0;
        s = rest;
    }
    return found;
}

static size_t spaces(gr_span s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += s.p[i] == ' ';
    return n;
}

static gr_span skip_currency(gr_span s)
{
    static const char *const signs[] = {"$", "\\$", "\xE2\x82\xAC", "\xC2\xA3"};
    for (size_t i = 0; i < GR_LEN(signs); i++)
        if (gr_span_starts(s, signs[i])) return gr_span_skip(s, strlen(signs[i]));
    return s;
}

/* The numbers that words begin with, n is 0 where they begin with none or go on as a formula. */
static gr_span first_numbers(gr_span words)
{
    words = skip_currency(skip_marks(words));
    size_t n = numbers_of(words);
    gr_span rest = gr_span_skip(words, n);
    bool ends = ends_number(rest) || strchr(",;:", *rest.p);
    return (gr_span){words.p, ends ? n : 0};
}

bool gr_math_find_number(gr_span words, gr_math_place place, gr_str *out)
{
    gr_span found = {words.p, 0};
    if (place == GR_IN_SENTENCE) found = first_numbers(words);
    if (!found.n) found = last_numbers(words, spaces(words) < 4);
    out->len = 0;
    gr_str_add(out, found.p, found.n);
    return found.n > 0;
}

/* ---- the answer --------------------------------------------------------------------------------------- */

static gr_math_place in_words(gr_span *text, gr_span words, gr_str *out)
{
    *text = without_marks(words);
    out->len = 0;
    gr_str_add(out, text->p, text->n);
    return GR_IN_WORDS;
}

static gr_math_place in_sentence(gr_span *text, gr_span words, gr_str *out)
{
    in_words(text, words, out);
    return GR_IN_SENTENCE;
}

/* A verb leads from the last formula to a number: "the largest $n$ is 34". */
static bool leads_to_number(gr_span tail)
{
    gr_span number = last_numbers(tail, true);
    if (!number.n) return false;
    gr_span words = gr_span_trim((gr_span){tail.p, (size_t)(number.p - tail.p)});
    return gr_math_is_prose(tail) || gr_span_is(words, "is") || gr_span_is(words, "are") ||
           gr_span_is(words, "by");
}

/* The last box or formula of text is its answer, and no number in later words. */
static bool ends_in_formula(gr_span *text, gr_str *out)
{
    const char *end;
    out->len = 0;
    if (!last_finds(*text, find_box, out, &end) && !last_finds(*text, find_formula, out, &end)) return false;
    gr_span tail = {end, text->n - (size_t)(end - text->p)};
    bool goes_on = leads_to_number(tail);
    if (goes_on) *text = tail;
    return !goes_on;
}

/* The last line with a number in it; all of s where there is none. */
static gr_span last_line(gr_span s)
{
    gr_span found = s;
    for (gr_span rest = s; rest.n;) {
        const char *end = memchr(rest.p, '\n', rest.n);
        gr_span line = {rest.p, end ? (size_t)(end - rest.p) : rest.n};
        if (last_numbers(line, false).n) found = line;
        rest = gr_span_skip(rest, line.n + 1);
    }
    return found;
}

/* The answer after an announcement: in its own sentence where that holds a formula or a number, else in what
 * follows. */
static gr_math_place announced(gr_span *text, gr_str *out)
{
    if (leading_finds(*text, find_box, out) || leading_finds(*text, find_formula, out)) return GR_IN_FORMULA;
    gr_span sentence = sentence_of(*text), part = sentence;
    if (number_of(skip_currency(sentence))) return in_sentence(text, sentence, out);
    if (ends_in_formula(&part, out)) return GR_IN_FORMULA;
    bool number = last_numbers(part, false).n;
    if (!number && ends_in_formula(text, out)) return GR_IN_FORMULA;
    return in_sentence(text, part, out);
}

gr_math_place gr_math_locate(gr_span *text, gr_str *out)
{
    const char *end;
    out->len = 0;
    *text = tagged(*text);
    bool boxed = last_finds(*text, find_box, out, &end);
    const char *after = after_announcement(*text);
    if (boxed && (!after || after < end)) return GR_IN_FORMULA;
    if (!after) return ends_in_formula(text, out) ? GR_IN_FORMULA : in_words(text, last_line(*text), out);
    *text = (gr_span){after, text->n - (size_t)(after - text->p)};
    return announced(text, out);
}
