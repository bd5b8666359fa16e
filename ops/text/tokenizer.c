/* ops/text/tokenizer.c: text to token ids and back with a loaded tokenizer. */
#include "ops/text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>
#include <xxhash.h>

const char *const gr_token_role_names[GR_TOKEN_ROLES] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                                         "sep_token"};

/* ---- the table of tokens ------------------------------------------------------------------------------ */

span gr_tokenizer_keep(gr_tokenizer *t, const char *bytes, size_t n)
{
    span s = {(uint32_t)t->blob.len, (uint32_t)n};
    gr_str_add(&t->blob, bytes, n);
    return s;
}

void gr_tokenizer_set(gr_tokenizer *t, int32_t id, const char *bytes, size_t n, uint32_t flags)
{
    size_t want = (size_t)id + 1;
    if (want > t->cap) {
        t->cap = GR_MAX(want, 2 * t->cap);
        t->tokens = gr_realloc(t->tokens, t->cap * sizeof(*t->tokens));
    }
    if (want > t->n) {
        memset(t->tokens + t->n, 0, (want - t->n) * sizeof(*t->tokens));
        t->n = want;
    }
    span name = gr_tokenizer_keep(t, bytes, n);
    t->tokens[id] = (token){name, name, name, flags | TOKEN_PRESENT};
}

static const char *bytes_of(const gr_tokenizer *t, int32_t id)
{
    return t->blob.text + t->tokens[id].name.at;
}

static uint32_t *find_slot(const gr_tokenizer *t, const char *bytes, size_t n)
{
    size_t mask = t->n_slots - 1, slot = XXH3_64bits(bytes, n) & mask;
    for (;; slot = (slot + 1) & mask) {
        uint32_t entry = t->slots[slot];
        if (!entry) break;
        if (t->tokens[entry - 1].name.len == n && !memcmp(bytes_of(t, (int32_t)entry - 1), bytes, n)) break;
    }
    return &t->slots[slot];
}

static void grow_slots(gr_tokenizer *t)
{
    uint32_t *old = t->slots;
    size_t n_old = t->n_slots;
    t->n_slots = n_old ? 2 * n_old : 1024;
    t->slots = gr_calloc(t->n_slots, sizeof(*t->slots));
    for (size_t i = 0; i < n_old; i++)
        if (old[i]) *find_slot(t, bytes_of(t, (int32_t)old[i] - 1), t->tokens[old[i] - 1].name.len) = old[i];
    free(old);
}

bool gr_tokenizer_hash(gr_tokenizer *t, int32_t id)
{
    if (2 * t->n_hashed >= t->n_slots) grow_slots(t);
    uint32_t *slot = find_slot(t, bytes_of(t, id), t->tokens[id].name.len);
    if (*slot) return false;
    *slot = (uint32_t)id + 1;
    t->n_hashed++;
    return true;
}

void gr_tokenizer_index_added(gr_tokenizer *t)
{
    for (size_t i = 1; i < t->n_added; i++) { /* insertion sort: a few hundred at most, nearly sorted */
        int32_t id = t->added[i];
        size_t j = i;
        for (; j > 0 && t->tokens[t->added[j - 1]].match.len < t->tokens[id].match.len; j--)
            t->added[j] = t->added[j - 1];
        t->added[j] = id;
    }
    for (size_t i = 0; i < t->n_added; i++) {
        const token *k = &t->tokens[t->added[i]];
        t->first_byte[!!(k->flags & TOKEN_NORMALIZED)][(unsigned char)t->blob.text[k->match.at]] = true;
    }
}

void gr_tokenizer_free(gr_tokenizer *t)
{
    if (!t) return;
    gr_str_release(&t->blob);
    free(t->tokens);
    free(t->slots);
    free(t->added);
    for (size_t i = 0; i < t->n_steps; i++) {
        free(t->steps[i].from);
        free(t->steps[i].to);
    }
    free(t->steps);
    gr_merges_release(&t->merges);
    gr_pretok_release(&t->pretok);
    free(t->prefix.id);
    free(t->suffix.id);
    free(t);
}

size_t gr_tokenizer_size(const gr_tokenizer *t)
{
    return t->n;
}

int32_t gr_tokenizer_id(const gr_tokenizer *t, const char *bytes, size_t n)
{
    return t->n_slots ? (int32_t)*find_slot(t, bytes, n) - 1 : -1;
}

const char *gr_tokenizer_token(const gr_tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || (size_t)id >= t->n || !(t->tokens[id].flags & TOKEN_PRESENT)) return NULL;
    *n = t->tokens[id].name.len;
    return bytes_of(t, id);
}

bool gr_tokenizer_is_special(const gr_tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n && t->tokens[id].flags & TOKEN_SPECIAL;
}

int32_t gr_tokenizer_role(const gr_tokenizer *t, gr_token_role role)
{
    return t->role[role];
}

/* text less the spaces that stand in it for METASPACE: of the first token, where the file says so */
static void add_without_spaces(const char *bytes, size_t n, gr_str *text)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != ' ') gr_str_putc(text, bytes[i]);
}

bool gr_tokenizer_append(const gr_tokenizer *t, int32_t id, bool at_start, gr_str *text)
{
    if (id < 0 || (size_t)id >= t->n || !(t->tokens[id].flags & TOKEN_PRESENT)) return at_start;
    span s = t->tokens[id].text;
    const char *bytes = t->blob.text + s.at;
    if (at_start && t->front == FRONT_FIRST_TOKEN)
        add_without_spaces(bytes, s.len, text);
    else if (at_start && t->front == FRONT_SPACE && s.len && *bytes == ' ')
        gr_str_add(text, bytes + 1, s.len - 1);
    else
        gr_str_add(text, bytes, s.len);
    return at_start && !s.len && t->front != FRONT_FIRST_TOKEN;
}

void gr_tokenizer_decode(const gr_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, gr_str *text)
{
    bool at_start = true;
    for (size_t i = 0; i < n; i++)
        if (!(skip_special && gr_tokenizer_is_special(t, ids[i])))
            at_start = gr_tokenizer_append(t, ids[i], at_start, text);
}

/* ---- encoding ----------------------------------------------------------------------------------------- */

/* One call's state. */
typedef struct encoder {
    const gr_tokenizer *t;
    const gr_text_range *fields; /* where special tokens are plain text */
    size_t n_fields;
    void *match;
    gr_bpe_scratch bpe;
    gr_ids *out;
    gr_diag *d;
} encoder;

/* A run of text that is encoded as a whole, and the part of the caller's text that it stands for. */
typedef struct piece {
    const char *text;
    size_t n;
    gr_text_range from;
    const int32_t *map; /* [n + 1]: the place in the caller's text of each byte; NULL: */
    bool same;          /* text is the caller's own bytes, so that a place in one is a place in the other */
    bool start;         /* begins where the caller's text does */
} piece;

static piece part_of(const piece *p, size_t begin, size_t end)
{
    piece q = {p->text + begin, end - begin, p->from, NULL, p->same, p->start && !begin};
    if (p->map) {
        q.map = p->map + begin;
        q.from = (gr_text_range){(size_t)p->map[begin], (size_t)p->map[end]};
    }
    if (p->same) q.from = (gr_text_range){p->from.begin + begin, p->from.begin + end};
    return q;
}

static bool in_field(const encoder *e, const piece *p)
{
    for (size_t i = 0; i < e->n_fields; i++)
        if (e->fields[i].begin < p->from.end && p->from.begin < e->fields[i].end) return true;
    return false;
}

/* Length of the well-formed UTF-8 character at s, 0 where there is none. */
static size_t char_at(const char *s, size_t n, int32_t *c)
{
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, c);
    return len > 0 ? (size_t)len : 0;
}

static size_t char_before(const char *s, size_t at, int32_t *c)
{
    for (size_t len = 1; len <= 4 && len <= at; len++)
        if (char_at(s + at - len, len, c) == len) return len;
    return 0;
}

static bool is_space(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (c >= 9 && c <= 13) || c == 0x85 || k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL ||
           k == UTF8PROC_CATEGORY_ZP;
}

static bool is_word(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC;
}

static bool touches_word(const piece *p, size_t begin, size_t end)
{
    int32_t c;
    if (char_before(p->text, begin, &c) && is_word(c)) return true;
    return char_at(p->text + end, p->n - end, &c) && is_word(c);
}

/* The added token of the given kind that begins at byte `at` of p, or -1. */
static int32_t added_at(const encoder *e, const piece *p, size_t at, bool normalized)
{
    const gr_tokenizer *t = e->t;
    if (!t->first_byte[normalized][(unsigned char)p->text[at]]) return -1;
    for (size_t i = 0; i < t->n_added; i++) {
        int32_t id = t->added[i];
        const token *k = &t->tokens[id];
        span m = k->match;
        if (!!(k->flags & TOKEN_NORMALIZED) != normalized || m.len > p->n - at ||
            memcmp(t->blob.text + m.at, p->text + at, m.len))
            continue;
        piece q = part_of(p, at, at + m.len);
        if (k->flags & TOKEN_SPECIAL && in_field(e, &q)) continue;
        if (k->flags & TOKEN_WORD && touches_word(p, at, at + m.len)) continue;
        return id;
    }
    return -1;
}

/* The place of the added token widened over the white space it takes, not before `limit`. */
static gr_text_range widen(const gr_tokenizer *t, const piece *p, size_t at, int32_t id, size_t limit)
{
    gr_text_range r = {at, at + t->tokens[id].match.len};
    int32_t c;
    size_t len;
    if (t->tokens[id].flags & TOKEN_LSTRIP)
        while (r.begin > limit && (len = char_before(p->text, r.begin, &c)) && is_space(c)) r.begin -= len;
    if (t->tokens[id].flags & TOKEN_RSTRIP)
        while (r.end < p->n && (len = char_at(p->text + r.end, p->n - r.end, &c)) && is_space(c))
            r.end += len;
    return r;
}

static void push(encoder *e, int32_t id)
{
    GR_PUSH(e->out->id, e->out->n, e->out->cap, id);
}

static gr_status add_byte(encoder *e, char byte)
{
    int32_t id = e->t->byte_id[(unsigned char)byte];
    if (id < 0)
        return gr_diag_error(e->d, (gr_loc){0}, GR_E_INVALID, "the tokenizer has no token for byte 0x%02x",
                             (unsigned char)byte);
    push(e, id);
    return GR_OK;
}

static gr_status add_bytes(encoder *e, const char *text, size_t n)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < n && st == GR_OK; i++) st = add_byte(e, text[i]);
    return st;
}

static bool has_bytes(const gr_tokenizer *t, const char *text, size_t n)
{
    bool all = t->byte_fallback;
    for (size_t i = 0; i < n && all; i++) all = t->byte_id[(unsigned char)text[i]] >= 0;
    return all;
}

/* The characters of a word: each its token, or its bytes, or unknown. Like `tokenizers`, an unknown one waits
 * for the next that has a token. */
static gr_status add_pieces(encoder *e, const char *text, size_t n)
{
    const gr_tokenizer *t = e->t;
    bool unknown = false;
    for (size_t at = 0, len; at < n; at += len) {
        int32_t c;
        len = char_at(text + at, n - at, &c);
        int32_t id = gr_tokenizer_id(t, text + at, len);
        if (id < 0 && has_bytes(t, text + at, len)) {
            gr_status st = add_bytes(e, text + at, len);
            if (st) return st;
            continue;
        }
        if (id < 0 && t->unk < 0)
            return gr_diag_error(e->d, (gr_loc){0}, GR_E_INVALID, "the tokenizer has no token for '%.*s'",
                                 (int)len, text + at);
        if (unknown && (id >= 0 || !t->fuse_unk)) push(e, t->unk);
        unknown = id < 0;
        if (id >= 0) push(e, id);
    }
    if (unknown) push(e, t->unk);
    return GR_OK;
}

/* A gr_piece_fn: one pre-token. */
static gr_status add_word(void *user, const char *text, size_t n)
{
    encoder *e = user;
    if (e->t->ignore_merges) {
        int32_t id = gr_tokenizer_id(e->t, text, n);
        if (id >= 0) {
            push(e, id);
            return GR_OK;
        }
    }
    size_t first = e->out->n;
    gr_status st = e->t->pieces ? add_pieces(e, text, n) : add_bytes(e, text, n);
    if (!st && e->out->n > first)
        e->out->n = first + gr_bpe_merge(&e->t->merges, &e->bpe, e->out->id + first, e->out->n - first);
    return st;
}

static gr_status add_characters(encoder *e, const piece *p)
{
    for (size_t at = 0; at < p->n;) {
        int32_t c, id = -1;
        size_t len = char_at(p->text + at, p->n - at, &c);
        if (len) id = gr_tokenizer_id(e->t, p->text + at, len);
        if (id < 0 || gr_tokenizer_is_special(e->t, id)) id = e->t->role[GR_TOKEN_UNK];
        push(e, id);
        at += len ? len : 1;
    }
    return GR_OK;
}

/* METASPACE for each space, and before the text where the file says so. */
static void put_metaspace(const gr_tokenizer *t, const char *text, size_t n, bool start, gr_str *out)
{
    bool prefix = t->prefix_space == PREFIX_ALWAYS || (t->prefix_space == PREFIX_FIRST && start);
    bool has = *text == ' ' || (n >= 3 && !memcmp(text, METASPACE, 3));
    if (prefix && !has) gr_str_puts(out, METASPACE);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ')
            gr_str_puts(out, METASPACE);
        else
            gr_str_putc(out, text[i]);
    }
}

/* A run of valid UTF-8. */
static gr_status add_run(encoder *e, const char *text, size_t n, bool start)
{
    gr_str spaced = {0};
    if (e->t->metaspace && n) {
        put_metaspace(e->t, text, n, start, &spaced);
        text = spaced.text;
        n = spaced.len;
    }
    gr_status st = gr_pretok_walk(&e->t->pretok, e->match, text, n, add_word, e);
    gr_str_release(&spaced);
    return st;
}

/* A byte that is no part of well-formed UTF-8. */
static gr_status add_stray(encoder *e, char byte)
{
    if (!e->t->pieces || e->t->byte_id[(unsigned char)byte] >= 0 || e->t->unk < 0) return add_byte(e, byte);
    push(e, e->t->unk);
    return GR_OK;
}

/* Text without added tokens: runs of valid UTF-8 go through the pre-tokenizer, other bytes stand alone. */
static gr_status add_plain(encoder *e, const piece *p)
{
    if (e->t->characters) return add_characters(e, p);
    gr_status st = GR_OK;
    for (size_t at = 0; st == GR_OK && at < p->n;) {
        size_t begin = at, len;
        int32_t c;
        while (at < p->n && (len = char_at(p->text + at, p->n - at, &c))) at += len;
        st = add_run(e, p->text + begin, at - begin, p->start && !begin);
        if (st == GR_E_FAILED)
            return gr_diag_error(e->d, (gr_loc){0}, st, "a pattern of the tokenizer gives up on this text");
        if (st == GR_OK && at < p->n) st = add_stray(e, p->text[at++]);
    }
    return st;
}

static gr_status add_normalized(encoder *e, const piece *p);

/* Cut out the added tokens of one kind and pass what lies between on. */
static gr_status add_split(encoder *e, const piece *p, bool normalized)
{
    gr_status (*rest)(encoder *, const piece *) = normalized ? add_plain : add_normalized;
    gr_status st = GR_OK;
    size_t done = 0;
    for (size_t at = 0; st == GR_OK && at < p->n;) {
        int32_t id = added_at(e, p, at, normalized);
        if (id < 0) {
            at++;
            continue;
        }
        gr_text_range r = widen(e->t, p, at, id, done);
        piece before = part_of(p, done, r.begin);
        st = rest(e, &before);
        if (st == GR_OK) push(e, id);
        at = done = r.end;
    }
    piece last = part_of(p, done, p->n);
    return st == GR_OK ? rest(e, &last) : st;
}

/* Every code point below U+0300 is its own NFC and composes with nothing before it. */
static bool surely_nfc(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= 0xCC) return false;
    return true;
}

/* Runs of valid UTF-8 in NFC; other bytes as they are. */
static void put_nfc(const char *text, size_t size, gr_str *out)
{
    for (size_t at = 0; at < size;) {
        size_t begin = at, len;
        int32_t c;
        while (at < size && (len = char_at(text + at, size - at, &c))) at += len;
        utf8proc_uint8_t *nfc = NULL;
        utf8proc_ssize_t n =
            utf8proc_map((const utf8proc_uint8_t *)text + begin, (utf8proc_ssize_t)(at - begin), &nfc,
                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n < 0) gr_out_of_memory(0); /* the text is valid */
        gr_str_add(out, (const char *)nfc, (size_t)n);
        free(nfc);
        if (at < size) gr_str_putc(out, text[at++]);
    }
}

/* Append n bytes that come from byte `from` of the text; each from itself on, or all of them from it. */
static void put_mapped(gr_str *out, gr_ids *map, const char *bytes, size_t n, const int32_t *from, bool each)
{
    gr_str_add(out, bytes, n);
    for (size_t i = 0; i < n; i++) GR_PUSH(map->id, map->n, map->cap, from[each ? i : 0]);
}

/* text, whose bytes come from where `from` says, after one step. */
static void put_step(const norm_step *step, const gr_str *text, const int32_t *from, gr_str *out, gr_ids *map)
{
    size_t n_to = strlen(step->to), n_from = step->from ? strlen(step->from) : 0;
    if (step->kind == NORM_PREPEND && text->len) put_mapped(out, map, step->to, n_to, from, false);
    for (size_t i = 0; i < text->len;) {
        bool found = n_from && text->len - i >= n_from && !memcmp(text->text + i, step->from, n_from);
        put_mapped(out, map, found ? step->to : text->text + i, found ? n_to : 1, from + i, !found);
        i += found ? n_from : 1;
    }
    GR_PUSH(map->id, map->n, map->cap, from[text->len]);
}

bool gr_tokenizer_normalize(const gr_tokenizer *t, const char *text, size_t n, gr_str *out, gr_ids *map)
{
    gr_str now = {0}, next;
    gr_ids from = {0}, next_from;
    bool known = true;
    gr_str_add(&now, text, n);
    for (size_t i = 0; i <= n; i++) GR_PUSH(from.id, from.n, from.cap, (int32_t)i);
    for (size_t i = 0; i < t->n_steps; i++) {
        next = (gr_str){0};
        next_from = (gr_ids){0};
        bool nfc = t->steps[i].kind == NORM_NFC;
        if (nfc && surely_nfc(now.text ? now.text : "", now.len)) continue;
        if (nfc) {
            put_nfc(now.text, now.len, &next);
            known = known && next.len == now.len && !memcmp(next.text, now.text, now.len);
            for (size_t k = 0; k <= next.len; k++) /* exact where known stays */
                GR_PUSH(next_from.id, next_from.n, next_from.cap, from.id[GR_MIN(k, now.len)]);
        } else {
            put_step(&t->steps[i], &now, from.id, &next, &next_from);
        }
        gr_str_release(&now);
        free(from.id);
        now = next;
        from = next_from;
    }
    gr_str_add(out, now.text ? now.text : "", now.len);
    gr_str_release(&now);
    if (map)
        *map = from;
    else
        free(from.id);
    return known;
}

static gr_status add_normalized(encoder *e, const piece *p)
{
    bool nfc_alone = e->t->n_steps == 1 && e->t->steps[0].kind == NORM_NFC;
    if (!e->t->n_steps || !p->n || (nfc_alone && surely_nfc(p->text, p->n))) return add_split(e, p, true);
    gr_str text = {0};
    gr_ids map = {0};
    bool known = gr_tokenizer_normalize(e->t, p->text, p->n, &text, &map) && p->same;
    for (size_t i = 0; i < map.n && known; i++) map.id[i] += (int32_t)p->from.begin;
    piece q = {text.text ? text.text : "", text.len, p->from, known ? map.id : NULL, false, p->start};
    gr_status st = add_split(e, &q, true);
    gr_str_release(&text);
    free(map.id);
    return st;
}

gr_status gr_tokenizer_encode_fields(const gr_tokenizer *t, const char *text, size_t n,
                                     const gr_text_range *fields, size_t n_fields, unsigned flags,
                                     gr_ids *ids, gr_diag *d)
{
    const gr_text_range all = {0, n};
    encoder e = {.t = t, .fields = fields, .n_fields = n_fields, .out = ids, .d = d};
    if (!(flags & GR_ENCODE_SPECIAL)) {
        e.fields = &all;
        e.n_fields = 1;
    }
    if (n >= INT32_MAX)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "a text of %zu bytes is too long to encode", n);
    e.match = gr_pretok_match_new();
    if (flags & GR_ENCODE_FRAME)
        for (size_t i = 0; i < t->prefix.n; i++) push(&e, t->prefix.id[i]);
    piece p = {text, n, all, NULL, true, true};
    gr_status st = add_split(&e, &p, false);
    if (st == GR_OK && flags & GR_ENCODE_FRAME)
        for (size_t i = 0; i < t->suffix.n; i++) push(&e, t->suffix.id[i]);
    gr_pretok_match_free(e.match);
    gr_bpe_scratch_release(&e.bpe);
    return st;
}

gr_status gr_tokenizer_encode(const gr_tokenizer *t, const char *text, size_t n, unsigned flags, gr_ids *ids,
                              gr_diag *d)
{
    return gr_tokenizer_encode_fields(t, text, n, NULL, 0, flags, ids, d);
}
