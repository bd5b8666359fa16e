/* ops/text/tokenizer_load.c: tokenizer.json and tokenizer_config.json to a gr_tokenizer. */
#include "ops/text/tokenizer_impl.h"
#include "runtime/base/files.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <utf8proc.h>

#define TOKENIZER_JSON "tokenizer.json"
#define CONFIG_JSON    "tokenizer_config.json"

enum { MAX_ID = 1 << 22, MAX_FILE_BYTES = 1 << 30 };

/* jansson takes no NUL in an object's key, and byte-level vocabularies exist that have one. U+FFFF, which no
 * text may hold, stands for it until the key is read. */
static const char nul_stand_in[] = "\xef\xbf\xbf";

typedef struct loader {
    gr_tokenizer *t;
    gr_diag *d;
    const char *file;
    bool decodes_bytes;     /* the decoder has ByteFallback */
    json_t *vocab;          /* as spelled: what an added token is compared with */
    int16_t byte_of[0x144]; /* GPT-2's alphabet: code point to byte, -1: not in it */
} loader;

/* "tokenizer.json: model.merges[3]: text" */
GR_PRINTF(3, 4)
static gr_status refuse(const loader *l, const char *path, const char *fmt, ...)
{
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    gr_status st = gr_diag_error(l->d, (gr_loc){0}, GR_E_INVALID, "%s: %s: %s", l->file, path, s.text);
    gr_str_release(&s);
    return st;
}

static const char *kind_of(const json_t *j)
{
    static const char *const names[] = {"an object", "a list", "a string", "a whole number",
                                        "a number",  "true",   "false",    "null"};
    return j ? names[json_typeof(j)] : "nothing";
}

/* j must be of the type: says what it is instead. */
static gr_status want_type(const loader *l, const char *path, const json_t *j, json_type type)
{
    static const char *const names[] = {"an object", "a list", "a string", "a whole number"};
    if (j && json_typeof(j) == type) return GR_OK;
    return refuse(l, path, "expected %s, not %s", names[type], kind_of(j));
}

static bool is_nothing(const json_t *j)
{
    return !j || json_is_null(j) || json_is_false(j) || (json_is_string(j) && !json_string_length(j)) ||
           (json_is_number(j) && json_number_value(j) == 0);
}

/* Every key of object j is in the list. */
static gr_status known_keys(const loader *l, const char *path, json_t *j, const char *const *keys, size_t n)
{
    const char *key;
    json_t *value;
    json_object_foreach(j, key, value)
    {
        size_t i = 0;
        while (i < n && strcmp(keys[i], key)) i++;
        if (i == n) return refuse(l, path, "unknown key '%s'", key);
    }
    return GR_OK;
}
#define KNOWN_KEYS(l, path, j, ...)                            \
    known_keys(l, path, j, (const char *const[]){__VA_ARGS__}, \
               sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static gr_status read_json(json_t **out, const loader *l, const char *text, size_t n)
{
    char *copy = gr_strndup(text, n);
    for (char *p = copy, *end = copy + n; (p = memchr(p, '\\', (size_t)(end - p))) && p + 1 < end; p += 2)
        if (end - p >= 6 && !memcmp(p, "\\u0000", 6)) memcpy(p, "\\uffff", 6);
    json_error_t e;
    *out = json_loadb(copy, n, JSON_REJECT_DUPLICATES, &e);
    free(copy);
    if (*out) return GR_OK;
    char place[64];
    snprintf(place, sizeof(place), "line %d column %d", e.line, e.column);
    return refuse(l, place, "%s", e.text);
}

/* ---- the byte alphabet -------------------------------------------------------------------------------- */

static void init_alphabet(loader *l)
{
    memset(l->byte_of, 0xff, sizeof(l->byte_of));
    int other = 0x100;
    for (int b = 0; b < 256; b++) {
        bool itself = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
        l->byte_of[itself ? b : other++] = (int16_t)b;
    }
}

/* A vocabulary's spelling as bytes; false (and its own bytes) where some character is not in the alphabet. */
static bool unspell(const loader *l, const char *name, size_t n, gr_str *out)
{
    out->len = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned c = (unsigned char)name[i];
        if (c >= 0x80) {
            if (c >= 0xe0 || i + 1 >= n) goto raw;
            c = (c & 0x1f) << 6 | ((unsigned char)name[++i] & 0x3f);
        }
        if (c >= GR_LEN(l->byte_of) || l->byte_of[c] < 0) goto raw;
        gr_str_putc(out, (char)l->byte_of[c]);
    }
    return true;
raw:
    out->len = 0;
    for (size_t i = 0; i < n; i++) {
        if (n - i >= 3 && !memcmp(name + i, nul_stand_in, 3)) {
            gr_str_putc(out, '\0');
            i += 2;
        } else {
            gr_str_putc(out, name[i]);
        }
    }
    return false;
}

/* ---- model -------------------------------------------------------------------------------------------- */

static gr_status check_id(const loader *l, const char *path, const json_t *j, int32_t *id)
{
    *id = -1;
    gr_status st = want_type(l, path, j, JSON_INTEGER);
    if (st != GR_OK) return st;
    json_int_t v = json_integer_value(j);
    if (v < 0 || v >= MAX_ID) return refuse(l, path, "id %lld is not in 0 to %d", (long long)v, MAX_ID - 1);
    *id = (int32_t)v;
    return GR_OK;
}

/* As read_vocab's keys stand for bytes: as they are in a SentencePiece vocabulary. */
static bool spell(const loader *l, const char *name, size_t n, gr_str *out)
{
    bool spelled = unspell(l, name, n, out);
    if (!l->t->pieces) return spelled;
    out->len = 0;
    gr_str_add(out, name, n);
    return true;
}

/* The byte of "<0x0A>", -1: it is none. */
static int byte_of_name(const char *name, size_t n)
{
    static const char hex[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(name, "<0x", 3) || name[5] != '>') return -1;
    const char *high = memchr(hex, name[3], 16), *low = memchr(hex, name[4], 16);
    return high && low ? (int)((high - hex) * 16 + (low - hex)) : -1;
}

/* Decoded: a space for METASPACE, the byte for "<0x0A>". */
static void set_piece_text(loader *l, int32_t id)
{
    gr_tokenizer *t = l->t;
    const span name = t->tokens[id].name;
    if (!t->pieces) return;
    char *key = gr_strndup(t->blob.text + name.at, name.len);
    int byte = byte_of_name(key, name.len);
    gr_str text = {0};
    for (size_t i = 0; i < name.len; i++) {
        bool space = name.len - i >= 3 && !memcmp(key + i, METASPACE, 3);
        gr_str_putc(&text, space ? ' ' : key[i]);
        i += space ? 2 : 0;
    }
    if (byte >= 0) t->byte_id[byte] = id;
    t->tokens[id].text = byte >= 0 && l->decodes_bytes
                             ? gr_tokenizer_keep(t, (char[]){(char)byte}, 1)
                             : gr_tokenizer_keep(t, text.text ? text.text : "", text.len);
    gr_str_release(&text);
    free(key);
}

static gr_status read_vocab(loader *l, json_t *vocab)
{
    gr_status st = want_type(l, "model.vocab", vocab, JSON_OBJECT);
    if (st != GR_OK) return st;
    gr_str bytes = {0};
    const char *key;
    json_t *value;
    gr_ids foreign = {0}; /* spelled outside the alphabet: found by their text, unless a byte token has it */
    json_object_foreach(vocab, key, value)
    {
        int32_t id;
        char path[128];
        snprintf(path, sizeof(path), "model.vocab['%.80s']", key);
        if ((st = check_id(l, path, value, &id)) != GR_OK) break;
        if ((size_t)id < l->t->n && l->t->tokens[id].flags) {
            st = refuse(l, path, "id %d is taken by another token", id);
            break;
        }
        bool spelled = spell(l, key, strlen(key), &bytes);
        gr_tokenizer_set(l->t, id, bytes.text, bytes.len, 0);
        if (!spelled)
            GR_PUSH(foreign.id, foreign.n, foreign.cap, id);
        else if (bytes.len && gr_tokenizer_hash(l->t, id) && bytes.len == 1 && !l->t->pieces)
            l->t->byte_id[(unsigned char)bytes.text[0]] = id;
        set_piece_text(l, id);
    }
    for (size_t i = 0; st == GR_OK && i < foreign.n; i++) (void)gr_tokenizer_hash(l->t, foreign.id[i]);
    free(foreign.id);
    gr_str_release(&bytes);
    return st;
}

/* The two names of a merge: "a b", or ["a", "b"]. */
static bool merge_names(const json_t *j, const char *name[2], size_t n[2])
{
    if (json_is_array(j) && json_array_size(j) == 2) {
        for (size_t i = 0; i < 2; i++) {
            json_t *s = json_array_get(j, i);
            if (!json_is_string(s)) return false;
            name[i] = json_string_value(s);
            n[i] = json_string_length(s);
        }
        return true;
    }
    const char *text = json_string_value(j), *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' ')) return false;
    name[0] = text;
    n[0] = (size_t)(space - text);
    name[1] = space + 1;
    n[1] = strlen(space + 1);
    return true;
}

static gr_status read_merge(loader *l, const char *path, const json_t *j, gr_str part[2], gr_str *joined)
{
    const char *name[2];
    size_t n[2];
    int32_t id[2];
    if (!merge_names(j, name, n))
        return refuse(l, path, "expected \"a b\" or [\"a\", \"b\"], not %s", kind_of(j));
    joined->len = 0;
    for (int i = 0; i < 2; i++) {
        bool spelled = spell(l, name[i], n[i], &part[i]);
        id[i] = spelled && n[i] ? gr_tokenizer_id(l->t, part[i].text, part[i].len) : -1;
        if (id[i] < 0) return refuse(l, path, "'%.*s' is not in the vocabulary", (int)n[i], name[i]);
        gr_str_add(joined, part[i].text, part[i].len);
    }
    int32_t merged = gr_tokenizer_id(l->t, joined->text, joined->len);
    if (merged < 0)
        return refuse(l, path, "its result '%.*s%.*s' is not in the vocabulary", (int)n[0], name[0],
                      (int)n[1], name[1]);
    if (!gr_merges_add(&l->t->merges, id[0], id[1], merged))
        return refuse(l, path, "the pair '%.*s' and '%.*s' has been given before", (int)n[0], name[0],
                      (int)n[1], name[1]);
    return GR_OK;
}

static gr_status read_merges(loader *l, json_t *merges)
{
    gr_status st = want_type(l, "model.merges", merges, JSON_ARRAY);
    if (st != GR_OK) return st;
    gr_merges_init(&l->t->merges, json_array_size(merges));
    gr_str part[2] = {{0}, {0}}, joined = {0};
    size_t i;
    json_t *j;
    json_array_foreach(merges, i, j)
    {
        char path[48];
        snprintf(path, sizeof(path), "model.merges[%zu]", i);
        if ((st = read_merge(l, path, j, part, &joined)) != GR_OK) break;
    }
    for (i = 0; i < 2; i++) gr_str_release(&part[i]);
    gr_str_release(&joined);
    return st;
}

static gr_status read_unknown(loader *l, const json_t *name)
{
    l->t->unk = -1;
    if (is_nothing(name) || !l->t->pieces) return GR_OK;
    gr_status st = want_type(l, "model.unk_token", name, JSON_STRING);
    if (st) return st;
    l->t->unk = gr_tokenizer_id(l->t, json_string_value(name), json_string_length(name));
    return l->t->unk >= 0
               ? GR_OK
               : refuse(l, "model.unk_token", "'%s' is not in the vocabulary", json_string_value(name));
}

static gr_status check_model(loader *l, json_t *model)
{
    static const char *const must_be_unset[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    gr_status st = want_type(l, "model", model, JSON_OBJECT);
    if (st) return st;
    json_t *type = json_object_get(model, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE")))
        return refuse(l, "model.type", "only 'BPE' is supported%s%s", json_is_string(type) ? ", not " : "",
                      json_is_string(type) ? json_string_value(type) : "");
    st = KNOWN_KEYS(l, "model", model, "type", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges");
    for (size_t i = 0; i < GR_LEN(must_be_unset) && !st; i++)
        if (!is_nothing(json_object_get(model, must_be_unset[i])))
            st = refuse(l, "model", "'%s' is not supported", must_be_unset[i]);
    if (!st && !l->t->pieces && json_is_true(json_object_get(model, "byte_fallback")))
        st = refuse(l, "model", "'byte_fallback' beside ByteLevel is not supported");
    return st;
}

static gr_status read_model(loader *l, json_t *model)
{
    gr_status st = check_model(l, model);
    if (st) return st;
    l->t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    l->t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    l->t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    l->vocab = json_object_get(model, "vocab");
    st = read_vocab(l, l->vocab);
    if (!st) st = read_unknown(l, json_object_get(model, "unk_token"));
    return st ? st : read_merges(l, json_object_get(model, "merges"));
}

/* ---- added tokens ------------------------------------------------------------------------------------- */

static gr_status read_token_flags(const loader *l, const char *path, json_t *j, uint32_t *flags)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } bits[] = {{"special", TOKEN_SPECIAL},
                {"lstrip", TOKEN_LSTRIP},
                {"rstrip", TOKEN_RSTRIP},
                {"single_word", TOKEN_WORD},
                {"normalized", TOKEN_NORMALIZED}};
    *flags = 0;
    for (size_t i = 0; i < GR_LEN(bits); i++) {
        json_t *v = json_object_get(j, bits[i].key);
        if (v && !json_is_boolean(v)) return refuse(l, path, "'%s' must be true or false", bits[i].key);
        if (json_is_true(v)) *flags |= bits[i].flag;
    }
    return KNOWN_KEYS(l, path, j, "id", "content", "single_word", "lstrip", "rstrip", "normalized",
                      "special");
}

static int32_t added_id(const gr_tokenizer *t, const char *text, size_t n)
{
    int32_t id = -1;
    for (size_t i = 0; i < t->n_added && id < 0; i++) {
        span name = t->tokens[t->added[i]].name;
        if (name.len == n && !memcmp(t->blob.text + name.at, text, n)) id = t->added[i];
    }
    return id;
}

/* The id of a name as the files spell it, not of the bytes that it stands for: -1: none. */
static int32_t id_of_name(const loader *l, const char *text, size_t n)
{
    const json_t *key = json_is_object(l->vocab) ? json_object_get(l->vocab, text) : NULL;
    int32_t id = added_id(l->t, text, n);
    return id >= 0 ? id : key ? (int32_t)json_integer_value(key) : -1;
}

/* An added token is looked for by its name; it decodes as the decoder reads a name. */
static void set_added(loader *l, int32_t id, const char *text, size_t n)
{
    gr_str bytes = {0};
    bool spelled = !l->t->pieces && unspell(l, text, n, &bytes);
    gr_tokenizer_set(l->t, id, text, n, 0);
    if (spelled) l->t->tokens[id].text = gr_tokenizer_keep(l->t, bytes.text, bytes.len);
    (void)gr_tokenizer_hash(l->t, id);
    set_piece_text(l, id);
    gr_str_release(&bytes);
}

/* Those that are looked for in normalized text are normalized themselves. */
static void normalize_added(gr_tokenizer *t)
{
    for (size_t i = 0; i < t->n_added; i++) {
        token *k = &t->tokens[t->added[i]];
        gr_str text = {0};
        if (!(k->flags & TOKEN_NORMALIZED)) continue;
        (void)gr_tokenizer_normalize(t, t->blob.text + k->name.at, k->name.len, &text, NULL);
        if (text.len) k->match = gr_tokenizer_keep(t, text.text, text.len);
        gr_str_release(&text);
    }
}

static gr_status add_token(loader *l, const char *path, json_t *j, int32_t id)
{
    gr_tokenizer *t = l->t;
    uint32_t flags;
    const json_t *content = json_object_get(j, "content");
    gr_status st = read_token_flags(l, path, j, &flags);
    if (st == GR_OK) st = want_type(l, path, content, JSON_STRING);
    if (st != GR_OK) return st;
    const char *text = json_string_value(content);
    size_t n = json_string_length(content);
    if (!n) return refuse(l, path, "an added token without text");
    int32_t known = id_of_name(l, text, n);
    if (known >= 0 && known != id) return refuse(l, path, "'%s' is id %d already", text, known);
    if (known < 0 && (size_t)id < t->n && t->tokens[id].flags)
        return refuse(l, path, "id %d of '%s' is taken by another token", id, text);
    if (known < 0 || !t->pieces) set_added(l, id, text, n);
    t->tokens[id].flags = flags | TOKEN_PRESENT;
    GR_PUSH(t->added, t->n_added, t->cap_added, id);
    return GR_OK;
}

static gr_status read_added(loader *l, json_t *list)
{
    size_t i;
    json_t *j;
    if (list && !json_is_array(list)) return want_type(l, "added_tokens", list, JSON_ARRAY);
    json_array_foreach(list, i, j)
    {
        char path[48];
        int32_t id;
        snprintf(path, sizeof(path), "added_tokens[%zu]", i);
        gr_status st = want_type(l, path, j, JSON_OBJECT);
        if (st == GR_OK) st = check_id(l, path, json_object_get(j, "id"), &id);
        if (st == GR_OK) st = add_token(l, path, j, id);
        if (st != GR_OK) return st;
    }
    return GR_OK;
}

static bool is_added(const gr_tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i] == id) return true;
    return false;
}

/* added_tokens_decoder of tokenizer_config.json: tokens that tokenizer.json does not have yet. */
static gr_status read_added_decoder(loader *l, json_t *map)
{
    const char *key;
    json_t *j;
    if (map && !json_is_object(map)) return want_type(l, "added_tokens_decoder", map, JSON_OBJECT);
    json_object_foreach(map, key, j)
    {
        char path[64], *end;
        snprintf(path, sizeof(path), "added_tokens_decoder['%.20s']", key);
        long id = strtol(key, &end, 10);
        if (end == key || *end || id < 0 || id >= MAX_ID) return refuse(l, path, "the key is not an id");
        gr_status st = want_type(l, path, j, JSON_OBJECT);
        if (st == GR_OK && !is_added(l->t, (int32_t)id)) st = add_token(l, path, j, (int32_t)id);
        if (st != GR_OK) return st;
    }
    return GR_OK;
}

/* ---- the parts around the model ----------------------------------------------------------------------- */

typedef gr_status (*part_fn)(loader *l, const char *path, const char *type, json_t *j);

/* Parts nest in `Sequence`, which keeps its list under the given key. */
static gr_status read_part(loader *l, const char *path, json_t *j, const char *list_key, part_fn fn)
{
    gr_status st = want_type(l, path, j, JSON_OBJECT);
    if (st != GR_OK) return st;
    const char *type = json_string_value(json_object_get(j, "type"));
    if (!type) return refuse(l, path, "'type' is missing");
    if (strcmp(type, "Sequence")) return fn(l, path, type, j);
    json_t *list = json_object_get(j, list_key), *item;
    size_t i;
    if (!json_is_array(list)) return refuse(l, path, "'%s' must be a list", list_key);
    json_array_foreach(list, i, item)
    {
        char inner[96];
        snprintf(inner, sizeof(inner), "%s.%s[%zu]", path, list_key, i);
        if ((st = read_part(l, inner, item, list_key, fn)) != GR_OK) return st;
    }
    return GR_OK;
}

static void add_step(gr_tokenizer *t, int kind, const char *from, const char *to)
{
    norm_step step = {.from = from ? gr_strdup(from) : NULL, .to = to ? gr_strdup(to) : NULL};
    step.kind = kind;
    GR_PUSH(t->steps, t->n_steps, t->cap_steps, step);
}

/* The string of a "pattern" that is plain text; NULL: it is none. */
static const char *plain_pattern(json_t *j)
{
    const char *text = json_string_value(json_object_get(json_object_get(j, "pattern"), "String"));
    return text && *text ? text : NULL;
}

static gr_status on_normalizer(loader *l, const char *path, const char *type, json_t *j)
{
    const char *from = plain_pattern(j), *to = json_string_value(json_object_get(j, "content")),
               *before = json_string_value(json_object_get(j, "prepend"));
    if (!strcmp(type, "NFC"))
        add_step(l->t, NORM_NFC, NULL, NULL);
    else if (!strcmp(type, "Prepend") && before && l->t->pieces)
        add_step(l->t, NORM_PREPEND, NULL, before);
    else if (!strcmp(type, "Replace") && from && to && l->t->pieces)
        add_step(l->t, NORM_REPLACE, from, to);
    else
        return refuse(l, path,
                      "normalizer '%s' is not supported; NFC is, and in a SentencePiece vocabulary Prepend "
                      "and Replace of a String",
                      type);
    return GR_OK;
}

static gr_status add_stage(loader *l, const char *path, const char *pattern, size_t n, bool literal,
                           gr_split_behavior behavior, bool invert)
{
    char *why = gr_pretok_add(&l->t->pretok, pattern, n, literal, behavior, invert);
    if (!why) return GR_OK;
    gr_status st = refuse(l, path, "%s", why);
    free(why);
    return st;
}

static gr_status on_split(loader *l, const char *path, json_t *j)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    json_t *pattern = json_object_get(j, "pattern");
    json_t *literal = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");
    json_t *source = literal ? literal : regex;
    const char *behavior = json_string_value(json_object_get(j, "behavior"));
    if (!json_is_string(source)) return refuse(l, path, "'pattern' needs a string under 'Regex' or 'String'");
    if (!json_string_length(source)) return refuse(l, path, "'pattern' is empty");
    for (size_t i = 0; behavior && i < GR_LEN(names); i++)
        if (!strcmp(behavior, names[i]))
            return add_stage(l, path, json_string_value(source), json_string_length(source), literal,
                             (gr_split_behavior)i, json_is_true(json_object_get(j, "invert")));
    return refuse(l, path, "unknown 'behavior' %s",
                  behavior ? behavior : kind_of(json_object_get(j, "behavior")));
}

static gr_status on_metaspace(loader *l, const char *path, json_t *j)
{
    static const char *const schemes[] = {"never", "first", "always"};
    const char *mark = json_string_value(json_object_get(j, "replacement")),
               *scheme = json_string_value(json_object_get(j, "prepend_scheme"));
    json_t *old = json_object_get(j, "add_prefix_space");
    if (!mark || strcmp(mark, METASPACE))
        return refuse(l, path, "a 'replacement' other than U+2581 is not supported");
    if (l->t->metaspace || l->t->pretok.n) return refuse(l, path, "Metaspace behind others is not supported");
    l->t->metaspace = true;
    l->t->prefix_space = old && json_is_false(old) && !scheme ? PREFIX_NEVER : PREFIX_ALWAYS;
    for (size_t i = 0; scheme && i <= GR_LEN(schemes); i++) {
        if (i == GR_LEN(schemes)) return refuse(l, path, "unknown 'prepend_scheme' %s", scheme);
        l->t->prefix_space = (metaspace_prefix)i;
        if (!strcmp(schemes[i], scheme)) break;
    }
    if (json_is_false(json_object_get(j, "split"))) return GR_OK;
    return add_stage(l, path, METASPACE, strlen(METASPACE), true, GR_SPLIT_WITH_NEXT, false);
}

static gr_status on_pre_tokenizer(loader *l, const char *path, const char *type, json_t *j)
{
    if (!strcmp(type, "Split")) return on_split(l, path, j);
    if (!strcmp(type, "Digits")) {
        bool each = json_is_true(json_object_get(j, "individual_digits"));
        return add_stage(l, path, each ? "\\p{N}" : "\\p{N}+", each ? 5 : 6, false, GR_SPLIT_ISOLATED, false);
    }
    if (!strcmp(type, "Metaspace") && l->t->pieces) return on_metaspace(l, path, j);
    if (strcmp(type, "ByteLevel")) return refuse(l, path, "pre-tokenizer '%s' is not supported", type);
    if (json_is_true(json_object_get(j, "add_prefix_space")))
        return refuse(l, path, "'add_prefix_space' is not supported");
    if (json_is_false(json_object_get(j, "use_regex"))) return GR_OK;
    return add_stage(l, path, gr_pretok_gpt2, strlen(gr_pretok_gpt2), false, GR_SPLIT_ISOLATED, false);
}

/* What may stand in the decoder of a SentencePiece vocabulary. */
static gr_status on_piece_decoder(loader *l, const char *path, const char *type, json_t *j)
{
    const char *from = plain_pattern(j), *content = json_string_value(json_object_get(j, "content")),
               *scheme = json_string_value(json_object_get(j, "prepend_scheme"));
    bool space = content && !strcmp(content, " ");
    if (!strcmp(type, "ByteFallback") || !strcmp(type, "Fuse")) return GR_OK;
    if (!strcmp(type, "Replace") && from && space && !strcmp(from, METASPACE)) return GR_OK;
    if (!strcmp(type, "Strip") && space && json_integer_value(json_object_get(j, "start")) == 1 &&
        json_integer_value(json_object_get(j, "stop")) == 0) {
        l->t->front = FRONT_SPACE;
        return GR_OK;
    }
    if (!strcmp(type, "Metaspace")) {
        bool never =
            scheme ? !strcmp(scheme, "never") : json_is_false(json_object_get(j, "add_prefix_space"));
        l->t->front = never ? FRONT_KEPT : FRONT_FIRST_TOKEN;
        return GR_OK;
    }
    return refuse(l, path, "decoder '%s' with these settings is not supported", type);
}

static gr_status on_decoder(loader *l, const char *path, const char *type, json_t *j)
{
    if (l->t->pieces) return on_piece_decoder(l, path, type, j);
    return strcmp(type, "ByteLevel") ? refuse(l, path, "decoder '%s' is not supported; ByteLevel is", type)
                                     : GR_OK;
}

/* One {"SpecialToken": {"id": "<s>"}} of a template: the ids that special_tokens gives for it. */
static gr_status frame_token(loader *l, const char *path, json_t *j, json_t *tokens, gr_ids *to)
{
    const char *name = json_string_value(json_object_get(json_object_get(j, "SpecialToken"), "id"));
    if (!name) return refuse(l, path, "expected 'Sequence' or 'SpecialToken'");
    json_t *ids = json_object_get(json_object_get(tokens, name), "ids"), *v;
    size_t i;
    if (!json_is_array(ids)) return refuse(l, path, "'%s' is not in special_tokens", name);
    json_array_foreach(ids, i, v)
    {
        int32_t id;
        size_t len;
        gr_status st = check_id(l, path, v, &id);
        if (st != GR_OK) return st;
        if (!gr_tokenizer_token(l->t, id, &len)) return refuse(l, path, "id %d is not in the vocabulary", id);
        GR_PUSH(to->id, to->n, to->cap, id);
    }
    return GR_OK;
}

static gr_status on_post_processor(loader *l, const char *path, const char *type, json_t *j)
{
    if (!strcmp(type, "ByteLevel")) return GR_OK; /* trims offsets, which we do not have */
    if (strcmp(type, "TemplateProcessing"))
        return refuse(l, path, "post-processor '%s' is not supported", type);
    json_t *single = json_object_get(j, "single"), *item;
    size_t i;
    bool after = false;
    if (!json_is_array(single)) return refuse(l, path, "'single' must be a list");
    json_array_foreach(single, i, item)
    {
        json_t *sequence = json_object_get(item, "Sequence");
        if (sequence && after) return refuse(l, path, "'single' names the text twice");
        gr_status st = sequence ? GR_OK
                                : frame_token(l, path, item, json_object_get(j, "special_tokens"),
                                              after ? &l->t->suffix : &l->t->prefix);
        if (st != GR_OK) return st;
        after |= sequence != NULL;
    }
    return after ? GR_OK : refuse(l, path, "'single' does not name the text");
}

/* Whether j, or a part of its sequence, has the type. */
static bool has_part(const json_t *j, const char *list_key, const char *type)
{
    const char *own = json_string_value(json_object_get(j, "type"));
    const json_t *list = json_object_get(j, list_key);
    bool found = own && !strcmp(own, type);
    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = has_part(json_array_get(list, i), list_key, type);
    return found;
}

/* A vocabulary in GPT-2's alphabet of bytes, or one of pieces of text. */
static gr_status find_kind(loader *l, const json_t *root)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *decoder = json_object_get(root, "decoder");
    const json_t *model = json_object_get(root, "model");
    bool fallback = json_is_true(json_object_get(model, "byte_fallback"));
    bool bytes = has_part(pre, "pretokenizers", "ByteLevel");
    l->decodes_bytes = has_part(decoder, "decoders", "ByteFallback");
    l->t->pieces = !bytes && (fallback || has_part(pre, "pretokenizers", "Metaspace") || l->decodes_bytes);
    bool replaces = has_part(decoder, "decoders", "Replace") || has_part(decoder, "decoders", "Metaspace");
    if (l->t->pieces && !replaces)
        return refuse(l, "decoder",
                      "a SentencePiece vocabulary without Replace or Metaspace is not supported");
    if (l->t->pieces && fallback && !l->decodes_bytes)
        return refuse(l, "decoder", "'byte_fallback' without a ByteFallback decoder is not supported");
    return GR_OK;
}

/* "type" of j or of the last of its sequence. */
static bool ends_in_byte_level(json_t *j)
{
    json_t *list = json_object_get(j, "pretokenizers");
    if (json_array_size(list)) j = json_array_get(list, json_array_size(list) - 1);
    const char *type = json_string_value(json_object_get(j, "type"));
    return type && !strcmp(type, "ByteLevel");
}

static gr_status read_tokenizer(loader *l, json_t *root)
{
    static const struct {
        const char *key, *list_key;
        part_fn fn;
    } parts[] = {
        {"normalizer", "normalizers", on_normalizer},
        {"pre_tokenizer", "pretokenizers", on_pre_tokenizer},
        {"post_processor", "processors", on_post_processor},
        {"decoder", "decoders", on_decoder},
    };
    gr_status st = want_type(l, "(root)", root, JSON_OBJECT);
    if (st == GR_OK)
        st = KNOWN_KEYS(l, "(root)", root, "version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model");
    if (st == GR_OK) st = find_kind(l, root);
    if (st == GR_OK) st = read_model(l, json_object_get(root, "model"));
    if (st == GR_OK) st = read_added(l, json_object_get(root, "added_tokens"));
    for (size_t i = 0; st == GR_OK && i < GR_LEN(parts); i++) {
        json_t *part = json_object_get(root, parts[i].key);
        if (!is_nothing(part)) st = read_part(l, parts[i].key, part, parts[i].list_key, parts[i].fn);
    }
    if (st == GR_OK && !l->t->pieces && !ends_in_byte_level(json_object_get(root, "pre_tokenizer")))
        st = refuse(l, "pre_tokenizer", "must end in ByteLevel: other vocabularies are not supported");
    return st;
}

/* ---- tokenizer_config.json ---------------------------------------------------------------------------- */

static gr_status read_roles(loader *l, json_t *config)
{
    for (int i = 0; i < GR_TOKEN_ROLES; i++) {
        json_t *j = json_object_get(config, gr_token_role_names[i]);
        if (json_is_object(j)) j = json_object_get(j, "content"); /* an AddedToken written out */
        if (!j || json_is_null(j)) continue;
        gr_status st = want_type(l, gr_token_role_names[i], j, JSON_STRING);
        if (st != GR_OK) return st;
        l->t->role[i] = id_of_name(l, json_string_value(j), json_string_length(j));
        if (l->t->role[i] < 0)
            gr_diag_warn(l->d, (gr_loc){0}, "%s: %s '%s' is not in the vocabulary", l->file,
                         gr_token_role_names[i], json_string_value(j));
    }
    return GR_OK;
}

/* A character tokenizer: four special tokens, then char_ords in order. */
static gr_status read_characters(loader *l, json_t *ords)
{
    static const struct {
        char text;
        gr_token_role role;
    } specials[] = {{'S', GR_TOKEN_SEP}, {'E', GR_TOKEN_EOS}, {'P', GR_TOKEN_PAD}, {'U', GR_TOKEN_UNK}};
    gr_tokenizer *t = l->t;
    size_t i;
    json_t *j;
    t->characters = true;
    for (int32_t id = 0; id < (int32_t)GR_LEN(specials); id++) {
        gr_tokenizer_set(t, id, &specials[id].text, 1, TOKEN_SPECIAL);
        (void)gr_tokenizer_hash(t, id);
        GR_PUSH(t->added, t->n_added, t->cap_added, id);
        t->role[specials[id].role] = id;
    }
    json_array_foreach(ords, i, j)
    {
        char path[48];
        utf8proc_uint8_t utf8[4];
        snprintf(path, sizeof(path), "char_ords[%zu]", i);
        json_int_t c = json_is_integer(j) ? json_integer_value(j) : -1;
        if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return refuse(l, path, "not a code point");
        int32_t id = (int32_t)(GR_LEN(specials) + i);
        gr_tokenizer_set(t, id, (char *)utf8, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, utf8), 0);
        if (!gr_tokenizer_hash(t, id))
            return refuse(l, path, "code point %lld has a token already", (long long)c);
    }
    return GR_OK;
}

static gr_status read_config(loader *l, json_t *config, bool have_tokenizer)
{
    gr_status st = want_type(l, "(root)", config, JSON_OBJECT);
    if (st != GR_OK) return st;
    if (have_tokenizer) {
        st = read_added_decoder(l, json_object_get(config, "added_tokens_decoder"));
    } else {
        json_t *ords = json_object_get(config, "char_ords");
        if (!json_is_array(ords))
            return refuse(l, "char_ords", "must be a list where there is no " TOKENIZER_JSON);
        st = read_characters(l, ords);
    }
    return st == GR_OK ? read_roles(l, config) : st;
}

/* ---- entry -------------------------------------------------------------------------------------------- */

gr_status gr_tokenizer_parse(gr_tokenizer **out, const char *tokenizer_json, size_t n_tokenizer,
                             const char *config_json, size_t n_config, gr_diag *d)
{
    json_t *root = NULL, *config = NULL;
    gr_status st = GR_OK;
    loader l = {.t = gr_calloc(1, sizeof(*l.t)), .d = d, .file = TOKENIZER_JSON};
    memset(l.t->role, 0xff, sizeof(l.t->role)); /* -1 */
    memset(l.t->byte_id, 0xff, sizeof(l.t->byte_id));
    init_alphabet(&l);
    l.t->unk = -1;
    if (!tokenizer_json && !config_json) {
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "no " TOKENIZER_JSON " and no " CONFIG_JSON);
        goto out;
    }
    if (tokenizer_json) {
        st = read_json(&root, &l, tokenizer_json, n_tokenizer);
        if (st == GR_OK) st = read_tokenizer(&l, root);
    }
    l.file = CONFIG_JSON;
    if (st == GR_OK && config_json) {
        st = read_json(&config, &l, config_json, n_config);
        if (st == GR_OK) st = read_config(&l, config, tokenizer_json);
    }
    if (st == GR_OK) {
        normalize_added(l.t);
        gr_tokenizer_index_added(l.t);
        *out = l.t;
        l.t = NULL;
    }
out:
    json_decref(root);
    json_decref(config);
    gr_tokenizer_free(l.t);
    return st;
}

/* The files of a slow tokenizer say what the one file says that is read here. */
static void hint(const char *dir, gr_diag *d)
{
    static const char *const slow[] = {"vocab.json", "tokenizer.model", "spiece.model", "vocab.txt"};
    for (size_t i = 0; i < GR_LEN(slow); i++) {
        char *path = gr_printf("%s/%s", dir, slow[i]);
        bool there = gr_path_exists(path);
        free(path);
        if (!there) continue;
        gr_diag_note(d, (gr_loc){0},
                     "'%s' has %s but no " TOKENIZER_JSON
                     "; transformers writes one: python3 -c \"from transformers import "
                     "AutoTokenizer as A; A.from_pretrained('%s', use_fast=True).save_pretrained('%s')\"",
                     dir, slow[i], dir, dir);
        break;
    }
}

gr_status gr_tokenizer_load(gr_tokenizer **out, const char *dir, gr_diag *d)
{
    char *paths[2] = {gr_printf("%s/" TOKENIZER_JSON, dir), gr_printf("%s/" CONFIG_JSON, dir)},
         *texts[2] = {0};
    size_t n[2] = {0};
    gr_status st = GR_OK;
    for (int i = 0; i < 2 && st == GR_OK; i++)
        if (gr_path_exists(paths[i])) st = gr_file_read(paths[i], MAX_FILE_BYTES, &texts[i], &n[i], d);
    if (st == GR_OK) {
        st = gr_tokenizer_parse(out, texts[0], n[0], texts[1], n[1], d);
        if (st != GR_OK) gr_diag_note(d, (gr_loc){0}, "while reading the tokenizer in '%s'", dir);
        if (st != GR_OK && !texts[0]) hint(dir, d);
    }
    for (int i = 0; i < 2; i++) {
        free(paths[i]);
        free(texts[i]);
    }
    return st;
}
