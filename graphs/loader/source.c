/* graphs/loader/source.c: one file's values with what it uses, --set applied and parameters replaced. */
#include "graphs/loader/loader.h"
#include "runtime/base/files.h"
#include "ops/registry.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { USE_DEPTH = 16, USE_FILES = 64 };

/* ---- paths -----------------------------------------------------------------------------------------------
 */

/* "a/b/", n bytes, without its last folder; n where that is not a name, or a link, whose ".." is elsewhere.
 */
static size_t folder_above(gr_arena *arena, const char *folder, size_t n)
{
    struct stat s;
    size_t begin = n ? n - 1 : 0;
    while (begin && folder[begin - 1] != '/') begin--;
    const char *name = folder + begin;
    bool plain =
        n > begin + 1 && !(n - begin == 2 && *name == '.') && !(n - begin == 3 && !strncmp(name, "..", 2));
    return plain && !lstat(gr_arena_strndup(arena, folder, n - 1), &s) && S_ISDIR(s.st_mode) ? begin : n;
}

const char *gr_path_from(gr_arena *arena, gr_loc at, const char *path)
{
    const char *slash = at.file && at.line ? strrchr(at.file, '/') : NULL; /* --set: as seen from the shell */
    if (*path == '/' || !slash) return path;
    size_t n = (size_t)(slash + 1 - at.file), above;
    if (!strncmp(path, "./", 2)) path += 2;
    while (!strncmp(path, "../", 3) && path[3] && (above = folder_above(arena, at.file, n)) != n) {
        path += 3;
        n = above;
    }
    return gr_arena_printf(arena, "%.*s%s", (int)n, at.file, path);
}

/* ---- maps ------------------------------------------------------------------------------------------------
 */

static gr_pair *find_pair(gr_value *map, const char *key)
{
    for (size_t i = 0; i < map->n; i++)
        if (!strcmp(map->pairs[i].key, key))
            return (gr_pair *)&map->pairs[i]; /* ours: made by the parser or here */
    return NULL;
}

static gr_pair *put(gr_arena *arena, gr_value *map, gr_pair pair)
{
    gr_pair *there = find_pair(map, pair.key);
    if (there) {
        *there = pair;
        return there;
    }
    gr_pair *pairs = gr_arena_alloc(arena, (map->n + 1) * sizeof(*pairs));
    if (map->n) memcpy(pairs, map->pairs, map->n * sizeof(*pairs));
    pairs[map->n++] = pair;
    map->pairs = pairs;
    return &pairs[map->n - 1];
}

static void take_out(gr_value *map, const char *key)
{
    gr_pair *p = find_pair(map, key);
    if (!p) return;
    size_t i = (size_t)(p - map->pairs);
    memmove(p, p + 1, (map->n - i - 1) * sizeof(*p));
    map->n--;
}

/* ---- use: ------------------------------------------------------------------------------------------------
 */

typedef struct use_stack {
    const char *real[USE_DEPTH], *shown[USE_DEPTH];
    size_t n, files;
} use_stack;

/* over's keys win; maps are merged key by key; a null takes a key of base out. */
static void merge(gr_arena *arena, gr_value *base, const gr_value *over)
{
    for (size_t i = 0; i < over->n; i++) {
        gr_pair p = over->pairs[i];
        gr_pair *there = find_pair(base, p.key);
        if (there && p.value.kind == GR_VALUE_NULL) {
            take_out(base, p.key);
        } else if (there && there->value.kind == GR_VALUE_MAP && p.value.kind == GR_VALUE_MAP) {
            merge(arena, &there->value, &p.value);
            there->at = p.at;
        } else {
            put(arena, base, p);
        }
    }
}

static gr_status read_text(gr_loader *l, const char *text, size_t n, const char *path, use_stack *stack,
                           gr_value *out);

static gr_status use_circle(gr_loader *l, const use_stack *stack, const char *real, const char *shown,
                            gr_loc at)
{
    for (size_t i = 0; i < stack->n; i++) {
        if (strcmp(stack->real[i], real)) continue;
        gr_str s = {0};
        for (size_t j = i; j < stack->n; j++) gr_str_printf(&s, "%s -> ", stack->shown[j]);
        gr_diag_error(l->d, at, GR_E_INVALID, "files use each other in a circle: %s%s", s.text, shown);
        gr_str_release(&s);
        return GR_E_INVALID;
    }
    return GR_OK;
}

static void use_file(gr_loader *l, const gr_value *v, use_stack *stack, gr_value *base)
{
    if (v->broken) return;
    if (v->kind != GR_VALUE_SCALAR) {
        gr_diag_error(l->d, v->at, GR_E_INVALID, "'use' must be the path of a file, or a list of paths");
        return;
    }
    const char *path = gr_path_from(l->arena, v->at, v->text);
    char *real = gr_path_real(path), *text = NULL;
    size_t n = 0;
    gr_value used = {0};
    if (!real) {
        gr_diag_error(l->d, v->at, GR_E_INVALID, "no file '%s' to use: %s", path, strerror(errno));
    } else if (!use_circle(l, stack, real, path, v->at)) {
        if (stack->n == USE_DEPTH || ++stack->files > USE_FILES)
            gr_diag_error(l->d, v->at, GR_E_INVALID, "more than %d files, or %d files deep, are used",
                          USE_FILES, USE_DEPTH);
        else if (!gr_file_read(path, GR_FILE_LIMIT, &text, &n, l->d) &&
                 !read_text(l, text, n, path, stack, &used))
            merge(l->arena, base, &used);
    }
    free(text);
    free(real);
}

static gr_status read_text(gr_loader *l, const char *text, size_t n, const char *path, use_stack *stack,
                           gr_value *out)
{
    gr_value own = {0}, base = {.kind = GR_VALUE_MAP, .at = {path, 1, 1}};
    gr_status st = gr_yaml_parse(&own, l->arena, text, n, path, l->d);
    if (st) return st;
    if (own.kind != GR_VALUE_MAP)
        return gr_diag_error(l->d, own.at, GR_E_INVALID,
                             "a graph file is a map of keys, such as graph: NAME");
    char *real = gr_path_real(path);
    stack->real[stack->n] = gr_arena_strdup(l->arena, real ? real : path);
    stack->shown[stack->n++] = path;
    free(real);
    const gr_value *use = gr_value_get(&own, "use");
    bool many = use && use->kind == GR_VALUE_LIST;
    for (size_t i = 0; use && i < (many ? use->n : 1); i++)
        use_file(l, many ? &use->items[i] : use, stack, &base);
    stack->n--;
    take_out(&own, "use");
    merge(l->arena, &base, &own);
    base.at = own.at;
    *out = base;
    return GR_OK;
}

/* ---- --set -----------------------------------------------------------------------------------------------
 */

typedef struct setting {
    gr_loc at;
    const char *name; /* before the = */
    gr_value value;
} setting;

static gr_status parse_setting(gr_loader *l, const char *text, setting *s)
{
    const char *eq = strchr(text, '=');
    s->at = (gr_loc){gr_arena_printf(l->arena, "--set '%s'", text), 0, 0};
    if (!eq || eq == text) return gr_diag_error(l->d, s->at, GR_E_INVALID, "expected NAME=VALUE");
    s->name = gr_arena_strndup(l->arena, text, (size_t)(eq - text));
    s->value = (gr_value){.kind = GR_VALUE_SCALAR, .at = s->at, .text = gr_arena_strdup(l->arena, eq + 1)};
    bool yaml = eq[1] && strchr("[{\"'", eq[1]); /* else the text as it is: expressions need no quotes */
    if (yaml && gr_yaml_parse(&s->value, l->arena, eq + 1, strlen(eq + 1), s->at.file, l->d))
        return GR_E_INVALID;
    return GR_OK;
}

static void unknown_name(gr_loader *l, gr_loc at, const char *what, const char *name, const gr_value *map)
{
    const char **names = gr_calloc(map ? map->n : 0, sizeof(*names));
    for (size_t i = 0; map && i < map->n; i++) names[i] = map->pairs[i].key;
    const char *near = gr_near(name, names, map ? map->n : 0);
    gr_str hint = {0};
    if (near) gr_str_printf(&hint, "; did you mean '%s'?", near);
    for (size_t i = 0; !near && map && i < map->n; i++)
        gr_str_printf(&hint, "%s%s", i ? ", " : "; there are ", names[i]);
    if (!near && !at.line && !strcmp(what, "parameter")) /* of --set; a run's own graph has most put in */
        gr_str_printf(&hint, "%s, such as models.actor.train.lr",
                      map && map->n ? ", and keys by their paths"
                                    : "; the graph has none: a key is set by its path");
    gr_diag_error(l->d, at, GR_E_INVALID, "unknown %s '%s'%s", what, name, hint.text ? hint.text : "");
    gr_str_release(&hint);
    free(names);
}

/* One step down a dotted path. The parts of the graph (nodes.NAME) must be there; maps inside may be new. */
static gr_value *step_down(gr_loader *l, const setting *s, gr_value *map, const char *key, unsigned depth)
{
    static const char *const top[] = {"nodes",  "models", "state", "run",      "log",
                                      "params", "on",     "pools", "functions"};
    gr_pair *p = find_pair(map, key);
    bool is_top = false;
    for (size_t i = 0; i < GR_LEN(top); i++) is_top = is_top || !strcmp(top[i], key);
    if (!p &&
        ((depth == 0 && !is_top) || (depth == 1 && strcmp(s->name, "run") && strncmp(s->name, "run.", 4)))) {
        unknown_name(l, s->at, depth ? "name" : "part of the graph", key, map);
        return NULL;
    }
    if (!p)
        p = put(l->arena, map,
                (gr_pair){gr_arena_strdup(l->arena, key), s->at, {.kind = GR_VALUE_MAP, .at = s->at}});
    if (p->value.kind == GR_VALUE_MAP) return &p->value;
    gr_diag_error(l->d, s->at, GR_E_INVALID, "'%s' is one value, without keys", key);
    return NULL;
}

/* Switches of the whole file, which a bare name reaches where no parameter has it. */
static bool is_switch(const char *key)
{
    return !strcmp(key, "strict") || !strcmp(key, "deterministic") || !strcmp(key, "canonical");
}

static void apply_setting(gr_loader *l, gr_value *root, const setting *s)
{
    gr_value *map = root;
    char *path = gr_arena_strdup(l->arena, s->name), *rest = path, *key = strsep(&rest, ".");
    if (!rest) {
        gr_pair *params = find_pair(root, "params");
        map = params && params->value.kind == GR_VALUE_MAP ? &params->value : NULL;
        const bool there = map && find_pair(map, key);
        if (!there && is_switch(key)) {
            map = root;
        } else if (!there) {
            unknown_name(l, s->at, "parameter", key, map);
            return;
        }
    }
    for (unsigned depth = 0; rest && map; depth++, key = strsep(&rest, "."))
        map = step_down(l, s, map, key, depth);
    if (map) put(l->arena, map, (gr_pair){key, s->at, s->value});
}

/* ---- parameters ------------------------------------------------------------------------------------------
 */

gr_param *gr_param_find(const gr_source *s, const char *name)
{
    for (size_t i = 0; i < s->n_params; i++)
        if (!strcmp(s->params[i].name, name)) return &s->params[i];
    return NULL;
}

static gr_value replaced(gr_loader *l, const gr_value *v);

/* A parameter may be made of others. */
static void settle(gr_loader *l, gr_param *p)
{
    if (p->state) return;
    p->state = 1;
    p->value = replaced(l, &p->value);
    p->state = 2;
}

/* inside: of a text. */
static const gr_value *param_value(gr_loader *l, const char *name, size_t n, gr_loc at, bool inside)
{
    gr_source *s = l->g->source;
    char *copy = gr_strndup(name, n);
    gr_param *p = gr_param_find(s, copy);
    if (!p) {
        unknown_name(l, at, "parameter", copy, gr_value_get(&s->root, "params"));
        if (inside) gr_diag_note(l->d, at, "for the text '$%s' itself write '$$%s'", copy, copy);
    } else if (p->state == 1) {
        gr_diag_error(l->d, at, GR_E_INVALID, "parameter '%s' is defined by itself", copy);
        p = NULL;
    }
    free(copy);
    if (!p) return NULL;
    p->used = p->replaced = true;
    settle(l, p);
    return &p->value;
}

/* The name after a $, with or without braces; 0: no name there. *end: after it. */
static size_t name_after_dollar(const char *p, const char **name, const char **end)
{
    bool brace = p[1] == '{';
    const char *q = *name = p + 1 + brace;
    if (!isalpha((unsigned char)*q) && *q != '_') return 0;
    while (isalnum((unsigned char)*q) || *q == '_') q++;
    if (brace && *q != '}') return 0;
    *end = q + brace;
    return (size_t)(q - *name);
}

/* A text's next dollars, and the name after the last of them. Before a name two stand for one, and the odd
 * one is the name's; others are as they are. */
typedef struct dollars {
    size_t plain, n; /* bytes before them; how many they are */
    const char *name, *end;
    size_t n_name; /* 0: none follows */
} dollars;

static dollars next_dollars(const char *p)
{
    dollars x = {.plain = strcspn(p, "$")};
    x.n = strspn(p + x.plain, "$");
    x.end = p + x.plain + x.n;
    if (x.n) x.n_name = name_after_dollar(x.end - 1, &x.name, &x.end);
    return x;
}

static const char *own_text(gr_arena *arena, gr_str *s)
{
    const char *text = gr_arena_strndup(arena, s->text ? s->text : "", s->len);
    gr_str_release(s);
    return text;
}

static void put_dollars(gr_str *s, size_t n)
{
    for (size_t i = 0; i < n; i++) gr_str_putc(s, '$');
}

static void put_value(gr_loader *l, gr_value *v, const dollars *x, gr_str *s)
{
    const gr_value *value = param_value(l, x->name, x->n_name, v->at, true);
    const bool one = value && value->kind == GR_VALUE_SCALAR;
    if (value && !one && !value->broken)
        gr_diag_error(l->d, v->at, GR_E_INVALID,
                      "parameter '%.*s' is not one value: it cannot be part of a text", (int)x->n_name,
                      x->name);
    v->broken = v->broken || !one || value->broken;
    if (one) gr_str_puts(s, value->text);
}

static void replace_inside(gr_loader *l, gr_value *v)
{
    gr_str s = {0};
    for (const char *p = v->text; *p;) {
        const dollars x = next_dollars(p);
        const char *behind = p + x.plain + x.n; /* the dollars */
        gr_str_add(&s, p, x.plain);
        put_dollars(&s, x.n_name ? x.n / 2 : x.n);
        if (x.n_name && x.n % 2)
            put_value(l, v, &x, &s);
        else if (x.n_name)
            gr_str_add(&s, behind, (size_t)(x.end - behind));
        p = x.end;
    }
    v->text = own_text(l->arena, &s);
}

/* A parameter that is the whole of a plain text is what it stands for: a number, a list. */
static gr_value replaced_scalar(gr_loader *l, gr_value v)
{
    const dollars x = next_dollars(v.text);
    if (!x.n) return v;
    if (v.quoted || v.block || x.plain || x.n > 1 || !x.n_name || *x.end) {
        replace_inside(l, &v);
        return v;
    }
    const gr_value *value = param_value(l, x.name, x.n_name, v.at, false);
    if (value) return *value;
    v.broken = true;
    return v;
}

/* The value with each of its texts as `change` makes them. */
typedef gr_value changer(void *user, gr_value scalar);

static gr_value changed(gr_arena *arena, const gr_value *v, changer *change, void *user)
{
    gr_value out = *v;
    if (v->kind == GR_VALUE_NULL || v->broken) return out;
    if (v->kind == GR_VALUE_SCALAR) return change(user, out);
    const bool map = v->kind == GR_VALUE_MAP;
    gr_pair *pairs = gr_arena_alloc(arena, map ? v->n * sizeof(*pairs) : 0);
    gr_value *items = gr_arena_alloc(arena, map ? 0 : v->n * sizeof(*items));
    for (size_t i = 0; i < v->n; i++) {
        if (map) pairs[i] = v->pairs[i];
        *(map ? &pairs[i].value : &items[i]) =
            changed(arena, map ? &v->pairs[i].value : &v->items[i], change, user);
    }
    out.pairs = map ? pairs : NULL;
    out.items = map ? NULL : items;
    return out;
}

static gr_value change_by_params(void *user, gr_value scalar)
{
    return replaced_scalar(user, scalar);
}

static gr_value replaced(gr_loader *l, const gr_value *v)
{
    return changed(l->arena, v, change_by_params, l);
}

static gr_value double_dollars(void *user, gr_value scalar)
{
    gr_str s = {0};
    for (const char *p = scalar.text; *p;) {
        const dollars x = next_dollars(p);
        const char *behind = p + x.plain + x.n;
        gr_str_add(&s, p, x.plain);
        put_dollars(&s, x.n_name ? 2 * x.n : x.n);
        gr_str_add(&s, behind, (size_t)(x.end - behind));
        p = x.end;
    }
    scalar.text = own_text(user, &s);
    return scalar;
}

gr_value gr_source_as_written(gr_arena *arena, const gr_value *v)
{
    return changed(arena, v, double_dollars, arena);
}

/* Expressions read parameters themselves. */
static bool is_expression(const gr_op *op, const char *key)
{
    if (!strcmp(key, "when") || !strcmp(key, "metrics")) return true;
    for (const gr_key *k = op ? op->keys : NULL; k && k->name; k++)
        if (!strcmp(k->name, key)) return k->kind == GR_KEY_EXPR || k->kind == GR_KEY_LOSS;
    return !op && strcmp(key, "op"); /* or may be one */
}

/* Where a $name in an expression ends. */
static const char *end_of_name(const char *p)
{
    for (p++; isalnum((unsigned char)*p) || *p == '_'; p++) continue;
    return p;
}

/* A text in quotes, which is as it is, to its end or that of the line. */
static const char *end_of_text(const char *p)
{
    const char quote = *p++;
    while (*p && *p != '\n' && *p != quote) p += 1 + (*p == '\\' && p[1] && p[1] != '\n');
    return p + (*p == quote);
}

static const char *put_in_text(const gr_source *s, gr_arena *arena, const char *expr)
{
    gr_str out = {0};
    for (const char *p = expr, *end; *p; p = end) {
        const bool text = *p == '"' || *p == '\'';
        end = *p == '$' ? end_of_name(p) : text ? end_of_text(p) : p + 1;
        char *name = gr_strndup(p, (size_t)(end - p));
        const gr_param *param = *p == '$' ? gr_param_find(s, name + 1) : NULL;
        if (param && param->replaced)
            gr_str_printf(&out, *param->value.text == '-' ? "(%s)" : "%s",
                          param->value.text + (*param->value.text == '+'));
        else
            gr_str_puts(&out, name);
        free(name);
    }
    return own_text(arena, &out);
}

typedef struct putting_in {
    const gr_source *source;
    gr_arena *arena;
} putting_in;

static gr_value change_expression(void *user, gr_value scalar)
{
    const putting_in *to = user;
    scalar.text = put_in_text(to->source, to->arena, scalar.text);
    return scalar;
}

gr_value gr_source_put_in(const gr_source *s, gr_arena *arena, const gr_value *v)
{
    putting_in to = {s, arena};
    return changed(arena, v, change_expression, &to);
}

static void replace_in_node(gr_loader *l, gr_value *node)
{
    const gr_op *op = NULL;
    gr_pair *name = node->kind == GR_VALUE_MAP ? find_pair(node, "op") : NULL;
    if (name) {
        name->value = replaced(l, &name->value);
        op = name->value.kind == GR_VALUE_SCALAR ? gr_op_find(name->value.text) : NULL;
    }
    for (size_t i = 0; node->kind == GR_VALUE_MAP && i < node->n; i++) {
        gr_pair *p = (gr_pair *)&node->pairs[i];
        if (p != name && !is_expression(op, p->key)) p->value = replaced(l, &p->value);
    }
}

static void replace_in_state(gr_loader *l, gr_value *state)
{
    for (size_t i = 0; state->kind == GR_VALUE_MAP && i < state->n; i++) {
        gr_pair *p = (gr_pair *)&state->pairs[i];
        if (strcmp(p->key, "next")) p->value = replaced(l, &p->value);
    }
}

/* Maps are the settings of trackers; the rest are expressions. */
static void replace_in_log(gr_loader *l, gr_value *log)
{
    for (size_t i = 0; log->kind == GR_VALUE_MAP && i < log->n; i++) {
        gr_pair *p = (gr_pair *)&log->pairs[i];
        if (p->value.kind == GR_VALUE_MAP) p->value = replaced(l, &p->value);
    }
}

static void replace_params(gr_loader *l, gr_value *root)
{
    for (size_t i = 0; i < root->n; i++) {
        gr_pair *p = (gr_pair *)&root->pairs[i];
        if (!strcmp(p->key, "log")) replace_in_log(l, &p->value);
        bool nodes = !strcmp(p->key, "nodes"), state = !strcmp(p->key, "state");
        if (!strcmp(p->key, "log") || !strcmp(p->key, "params") || !strcmp(p->key, "functions")) continue;
        if (!nodes && !state) p->value = replaced(l, &p->value);
        for (size_t j = 0; (nodes || state) && p->value.kind == GR_VALUE_MAP && j < p->value.n; j++)
            (nodes ? replace_in_node : replace_in_state)(l, (gr_value *)&p->value.pairs[j].value);
    }
    for (size_t i = 0; i < l->g->source->n_params; i++) settle(l, &l->g->source->params[i]);
}

static void read_params(gr_loader *l)
{
    gr_source *s = l->g->source;
    const gr_value *params = gr_value_get(&s->root, "params");
    if (!params || params->kind == GR_VALUE_NULL || !gr_value_is_map(l, "params", params)) return;
    s->params = gr_arena_alloc(l->arena, params->n * sizeof(*s->params));
    for (size_t i = 0; i < params->n; i++) {
        const gr_pair *p = &params->pairs[i];
        s->params[s->n_params++] = (gr_param){.name = p->key, .at = p->at, .value = p->value};
    }
}

gr_status gr_source_read(gr_loader *l, const char *text, size_t n, const char *path)
{
    use_stack stack = {0};
    gr_value *root = &l->g->source->root;
    gr_status st = read_text(l, text, n, path, &stack, root);
    if (st) return st;
    for (size_t i = 0; l->o && i < l->o->n_set; i++) {
        setting s;
        if (!parse_setting(l, l->o->set[i], &s)) apply_setting(l, root, &s);
    }
    read_params(l);
    replace_params(l, root);
    return GR_OK;
}
