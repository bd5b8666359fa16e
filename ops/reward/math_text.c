/* ops/reward/math_text.c: the normal form of mathematics. */
#include "ops/reward/math_text.h"

size_t gr_span_word(gr_span s)
{
    size_t n = 0;
    while (n < s.n && isalpha((unsigned char)s.p[n])) n++;
    return n;
}

size_t gr_span_group(gr_span s)
{
    int depth = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\\') {
            i++;
            continue;
        }
        depth += (s.p[i] == '{') - (s.p[i] == '}');
        if (depth == 0) return i + 1;
    }
    return 0;
}

/* ---- normal form ------------------------------------------------------------------------------------- */

struct rewrite {
    const char *from, *to;
};

/* Commands, by whole name. */
static const struct rewrite commands[] = {
    {"left", ""},          {"right", ""},
    {"big", ""},           {"Big", ""},
    {"bigl", ""},          {"bigr", ""},
    {"Bigl", ""},          {"Bigr", ""},
    {"bigg", ""},          {"quad", " "},
    {"qquad", " "},        {"displaystyle", ""},
    {"textstyle", ""},     {"limits", ""},
    {"degree", "\5"},      {"dfrac", "\\frac"},
    {"tfrac", "\\frac"},   {"cfrac", "\\frac"},
    {"cdot", "*"},         {"times", "*"},
    {"div", "/"},          {"le", "<="},
    {"leq", "<="},         {"leqslant", "<="},
    {"ge", ">="},          {"geq", ">="},
    {"geqslant", ">="},    {"lt", "<"},
    {"gt", ">"},           {"ne", "\7"},
    {"neq", "\7"},         {"approx", "~"},
    {"simeq", "~"},        {"lvert", "|"},
    {"rvert", "|"},        {"vert", "|"},
    {"mid", "|"},          {"dots", "..."},
    {"ldots", "..."},      {"cdots", "..."},
    {"lbrace", "\1"},      {"rbrace", "\2"},
    {"dbinom", "\\binom"}, {"tbinom", "\\binom"},
    {"colon", ":"},        {"varnothing", "\\emptyset"},
    {"imath", "i"},        {"nolimits", ""},
    {"lbrack", "["},       {"rbrack", "]"},
    {"bigcup", "\\cup"},   {"biggl", ""},
    {"biggr", ""},         {"asin", "\\arcsin"},
    {"acos", "\\arccos"},  {"atan", "\\arctan"},
};

/* Other byte sequences; the first that fits counts. */
static const struct rewrite signs[] = {
    {"\\{", "\1"},
    {"\\}", "\2"},
    {"\\!", ""},
    {"\\,", " "},
    {"\\;", " "},
    {"\\:", " "},
    {"\\ ", " "},
    {"\\%", "%"},
    {"\\$", ""},
    {"\\(", ""},
    {"\\)", ""},
    {"\\[", ""},
    {"\\]", ""},
    {"$", ""},
    {"^\\circ", "\5"},
    {"^{\\circ}", "\5"},
    {"\xC2\xB0", "\5"},
    {"\xC2\xA0", " "},
    {"\xE2\x82\xAC", ""},
    {"\xE2\x88\x92", "-"},
    {"\xE2\x80\x93", "-"},
    {"\xC3\x97", "*"},
    {"\xC3\xB7", "/"},
    {"\xC2\xB7", "*"},
    {"\xC2\xB1", "\\pm "},
    {"\xCF\x80", "\\pi "},
    {"\xE2\x89\xA4", "<="},
    {"\xE2\x89\xA5", ">="},
    {"\xE2\x89\xA0", "\7"},
    {"!=", "\7"},
    {"\xE2\x89\x88", "~"},
    {"\xE2\x88\x9E", "\\infty"},
    {"\xC2\xB2", "^2"},
    {"\xC2\xB3", "^3"},
    {"\xE2\x88\xAA", "\\cup"},
    {"\xE2\x88\x88", "\\in"},
    {"\xE2\x84\x9D", "\\mathbb{R}"},
    {"~", " "},
    {"**", "^"},
};

/* Words of plain text that are commands. */
static const char *const plain_commands[] = {"sqrt", "pi",  "sin", "cos",  "tan",    "cot",    "ln",    "log",
                                             "exp",  "sec", "csc", "sinh", "arcsin", "arccos", "arctan"};

static const char *const text_commands[] = {
    "text",   "textbf", "textit", "textrm", "textnormal", "textsf", "texttt",     "mbox", "mathrm",
    "mathbf", "mathsf", "hbox",   "mathit", "boxed",      "fbox",   "boldsymbol", "bm",   "emph"};

static char last_of(const gr_str *s)
{
    return s->len ? s->text[s->len - 1] : '\0';
}

static bool is_connector(gr_span word)
{
    static const char *const words[] = {"and", "or"};
    for (size_t i = 0; i < GR_LEN(words); i++)
        if (gr_span_is(word, words[i])) return true;
    return false;
}

/* The exponent of a unit, as in cm^2. */
static gr_span skip_exponent(gr_span s)
{
    gr_span t = gr_span_trim(s);
    if (!gr_span_starts(t, "^")) return s;
    t = gr_span_skip(t, 1);
    return gr_span_skip(t, gr_span_starts(t, "{") ? gr_span_group(t) : 1);
}

/* s holds two letters in a row: words, and not the name of a variable. */
static bool has_word(gr_span s)
{
    bool word = false;
    for (; s.n && !word; s = gr_span_skip(s, 1)) word = *s.p != '\\' && gr_span_word(s) >= 2;
    return word;
}

/* A unit stands after a quantity, and nothing that belongs to the words stands after it. */
static bool is_unit(const gr_str *out, gr_span inside, gr_span rest)
{
    char before = last_of(out);
    bool pi = out->len >= 3 && !memcmp(out->text + out->len - 3, "\\pi", 3);
    bool quantity = pi || isdigit((unsigned char)before) || (before && strchr("})]\5", before));
    gr_span next = gr_span_trim(rest);
    bool goes_on = next.n && (isalnum((unsigned char)*next.p) || *next.p == '(');
    gr_span word = gr_span_trim(inside);
    bool letter = word.n == 1 && inside.n == 1 && !strchr("mgshL", *word.p); /* \mathrm{e} */
    return quantity && !letter && !goes_on;
}

/* Words keep marks around them, so that they are no product of variables. */
static void put_words(gr_span inside, gr_str *out)
{
    bool words = has_word(inside);
    if (words) gr_str_putc(out, GR_TEXT);
    gr_math_normalise(inside, out);
    if (words) gr_str_putc(out, GR_TEXT);
}

/* \text{...}: a connector, a unit after a quantity, or words that are the answer. */
static gr_span put_text(gr_span rest, bool boxed, gr_str *out)
{
    size_t n = gr_span_group(rest);
    if (n < 2) return gr_span_skip(rest, 1);
    gr_span inside = {rest.p + 1, n - 2};
    rest = gr_span_skip(rest, n);
    if (boxed)
        gr_math_normalise(inside, out);
    else if (is_connector(gr_span_trim(inside)))
        gr_str_putc(out, ',');
    else if (is_unit(out, inside, rest))
        return skip_exponent(rest);
    else
        put_words(inside, out);
    return rest;
}

static bool ends_with(gr_span s, const char *text)
{
    size_t n = strlen(text);
    return s.n >= n && !memcmp(s.p + s.n - n, text, n);
}

/* Matrices and arrays, the latter with their columns; cases and determinants are no mathematics that is
 * understood. */
static gr_span put_environment(gr_span rest, bool begin, gr_str *out)
{
    size_t n = gr_span_group(rest);
    gr_span name = {rest.p + 1, n >= 2 ? n - 2 : 0};
    rest = gr_span_skip(rest, n);
    bool array = gr_span_is(name, "array"), matrix = ends_with(name, "matrix");
    bool determinant = matrix && tolower((unsigned char)*name.p) == 'v';
    if (gr_span_is(name, "cases") || determinant)
        gr_str_putc(out, GR_TEXT);
    else if (array || matrix)
        gr_str_putc(out, begin ? GR_MATRIX_OPEN : GR_MATRIX_CLOSE);
    return array && begin ? gr_span_skip(rest, gr_span_group(rest)) : rest;
}

/* \frac12, \frac{1}2 and \sqrt3 get their braces. */
static gr_span put_arguments(gr_span rest, int n_args, gr_str *out)
{
    for (int i = 0; i < n_args; i++) {
        rest = gr_span_trim(rest);
        if (!rest.n || *rest.p == '{' || *rest.p == '\\' || *rest.p == '[') break;
        gr_str_putc(out, '{');
        gr_str_putc(out, *rest.p);
        gr_str_putc(out, '}');
        rest = gr_span_skip(rest, 1);
    }
    return rest;
}

static bool is_one_of(gr_span name, const char *const *names, size_t n)
{
    bool is = false;
    for (size_t i = 0; i < n && !is; i++) is = gr_span_is(name, names[i]);
    return is;
}

static bool is_of_number(char c)
{
    return isdigit((unsigned char)c) || c == '.';
}

/* A space counts between two numbers alone: 3 1/2. */
static void put_space(gr_span rest, gr_str *out)
{
    rest = gr_span_trim(rest);
    if (is_of_number(last_of(out)) && rest.n && is_of_number(*rest.p)) gr_str_putc(out, ' ');
}

static gr_span put_rewrite(const struct rewrite *with, gr_span rest, gr_str *out)
{
    if (!strcmp(with->to, " "))
        put_space(rest, out);
    else
        gr_str_puts(out, with->to);
    if (!strcmp(with->to, "\\frac") || !strcmp(with->to, "\\binom")) return put_arguments(rest, 2, out);
    bool delimiter = !strcmp(with->from, "left") || !strcmp(with->from, "right");
    return gr_span_skip(rest, delimiter && gr_span_starts(rest, "."));
}

/* A command that has no other spelling. */
static gr_span put_name(gr_span name, gr_span rest, gr_str *out)
{
    gr_str_putc(out, '\\');
    gr_str_add(out, name.p, name.n);
    if (gr_span_word(gr_span_trim(rest)) && !gr_span_starts(rest, "{"))
        gr_str_putc(out, ' '); /* \pi r is not \pir */
    if (gr_span_is(name, "frac") || gr_span_is(name, "binom")) return put_arguments(rest, 2, out);
    return gr_span_is(name, "sqrt") ? put_arguments(rest, 1, out) : rest;
}

/* \operatorname{lcm} is \lcm. */
static gr_span put_operator(gr_span rest, gr_str *out)
{
    size_t n = gr_span_group(rest);
    gr_span name = {rest.p + 1, n >= 2 ? n - 2 : 0};
    rest = gr_span_skip(rest, n);
    return name.n && gr_span_word(name) == name.n ? put_name(name, rest, out) : rest;
}

/* s starts with a backslash and a letter. */
static gr_span put_command(gr_span s, gr_str *out)
{
    gr_span name = {s.p + 1, gr_span_word(gr_span_skip(s, 1))};
    if (name.n > 4 && !memcmp(name.p, "quad", 4)) name.n = 4; /* \quadx, seen in published answers */
    gr_span rest = gr_span_skip(s, name.n + 1), group = gr_span_trim(rest);
    if (is_one_of(name, text_commands, GR_LEN(text_commands)) && gr_span_starts(group, "{"))
        return put_text(group, gr_span_is(name, "boxed") || gr_span_is(name, "fbox"), out);
    if (gr_span_is(name, "operatorname")) return put_operator(group, out);
    if (gr_span_is(name, "begin")) return put_environment(rest, true, out);
    if (gr_span_is(name, "end")) return put_environment(rest, false, out);
    for (size_t i = 0; i < GR_LEN(commands); i++)
        if (gr_span_is(name, commands[i].from)) return put_rewrite(&commands[i], rest, out);
    return put_name(name, rest, out);
}

/* The sign of a root in front of a number, which it covers whole. */
static gr_span put_root(gr_span rest, gr_str *out)
{
    size_t n = 0;
    while (n < rest.n && isdigit((unsigned char)rest.p[n])) n++;
    gr_str_puts(out, "\\sqrt");
    if (!n) return rest;
    gr_str_putc(out, '{');
    gr_str_add(out, rest.p, n);
    gr_str_putc(out, '}');
    return gr_span_skip(rest, n);
}

static gr_span put_sign(gr_span s, gr_str *out)
{
    if (gr_span_starts(s, "\xE2\x88\x9A")) return put_root(gr_span_skip(s, 3), out);
    for (size_t i = 0; i < GR_LEN(signs); i++)
        if (gr_span_starts(s, signs[i].from))
            return put_rewrite(&signs[i], gr_span_skip(s, strlen(signs[i].from)), out);
    if (isspace((unsigned char)*s.p))
        put_space(s, out);
    else if ((unsigned char)*s.p > GR_MATRIX_ROW)
        gr_str_putc(out, *s.p);
    return gr_span_skip(s, 1);
}

static bool is_percent(gr_span word)
{
    static const char *const names[] = {"percent", "Percent", "percentage", "pct"};
    return is_one_of(word, names, GR_LEN(names));
}

/* A word that is a unit wherever it stands after a number. */
static bool is_plain_unit(char before, gr_span word)
{
    static const char *const units[] = {"cm",      "mm",      "km",    "kg",    "ft",      "mph",
                                        "feet",    "inches",  "hours", "hour",  "minutes", "seconds",
                                        "days",    "meters",  "miles", "units", "cents",   "years",
                                        "degrees", "dollars", "yards", "grams", "liters",  "km/h"};
    return isdigit((unsigned char)before) && is_one_of(word, units, GR_LEN(units));
}

/* A word in plain text. */
static gr_span put_word(gr_span s, gr_str *out)
{
    gr_span word = {s.p, gr_span_word(s)};
    s = gr_span_skip(s, word.n);
    if (is_plain_unit(last_of(out), word)) return skip_exponent(s);
    if (is_connector(word))
        gr_str_putc(out, ',');
    else if (is_percent(word))
        gr_str_putc(out, '%');
    else if (is_one_of(word, plain_commands, GR_LEN(plain_commands)))
        return put_name(word, s, out);
    else
        gr_str_add(out, word.p, word.n);
    return s;
}

/* ---- thousands ---------------------------------------------------------------------------------------- */

static size_t digits_of(gr_span s)
{
    size_t n = 0;
    while (n < s.n && isdigit((unsigned char)s.p[n])) n++;
    return n;
}

/* Bytes of what may part thousands; *sure: and nothing else. */
static size_t separator_of(gr_span s, bool *sure)
{
    static const char *const names[] = {"{,}", ",\\! ", ",\\!", "\\!,", "\\,", "\\;",
                                        "\\:", "\\ ",   "~",    " ",    ","};
    size_t n = 0;
    for (size_t i = 0; i < GR_LEN(names) && !n; i++)
        if (gr_span_starts(s, names[i])) n = strlen(names[i]);
    *sure = !(n == 1 && *s.p == ',');
    return n;
}

/* A group of three digits after a separator: its bytes, or 0. */
static size_t group_of(gr_span s, bool *sure)
{
    size_t n = separator_of(s, sure);
    return n && digits_of(gr_span_skip(s, n)) == 3 ? n + 3 : 0;
}

/* s starts with a number whose thousands are parted, and that does not go on as a list or a mixed number: its
 * bytes, or 0. */
static size_t thousands_of(gr_span s)
{
    size_t first = digits_of(s), n = first, group;
    bool sure, any_sure;
    if (first < 1 || first > 3 || *s.p == '0') return 0;
    while ((group = group_of(gr_span_skip(s, n), &sure))) n += group;
    gr_span rest = gr_span_skip(s, n);
    size_t part = separator_of(rest, &any_sure);
    bool goes_on = gr_span_starts(rest, "/") || (part && digits_of(gr_span_skip(rest, part)));
    return n > first && !goes_on ? n : 0;
}

/* The n bytes of a number with thousands: joined, or with a mark where the comma may part a list. */
static gr_span put_thousands(gr_span s, size_t n, gr_str *out)
{
    gr_span number = {s.p, n};
    size_t digits = digits_of(number);
    gr_str_add(out, number.p, digits);
    number = gr_span_skip(number, digits);
    while (number.n) {
        bool sure;
        size_t part = separator_of(number, &sure);
        if (!sure) gr_str_putc(out, GR_THOUSANDS);
        gr_str_add(out, number.p + part, 3);
        number = gr_span_skip(number, part + 3);
    }
    return gr_span_skip(s, n);
}

static gr_span put_digits(gr_span s, gr_str *out)
{
    char before = last_of(out);
    size_t n = before && strchr("._0123456789", before) ? 0 : thousands_of(s);
    if (n) return put_thousands(s, n, out);
    n = digits_of(s);
    gr_str_add(out, s.p, n);
    return gr_span_skip(s, n);
}

void gr_math_normalise(gr_span s, gr_str *out)
{
    while (s.n) {
        bool backslash = *s.p == '\\' && s.n > 1;
        if (backslash && s.p[1] == '\\' && s.n > 2 && isalpha((unsigned char)s.p[2]))
            s = gr_span_skip(s, 1); /* a command escaped once too often */
        else if (backslash && s.p[1] == '\\') {
            gr_str_putc(out, GR_MATRIX_ROW);
            s = gr_span_skip(s, 2);
        } else if (backslash && isalpha((unsigned char)s.p[1]))
            s = put_command(s, out);
        else if (isalpha((unsigned char)*s.p))
            s = put_word(s, out);
        else if (isdigit((unsigned char)*s.p))
            s = put_digits(s, out);
        else
            s = put_sign(s, out);
    }
}
