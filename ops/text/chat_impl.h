/* ops/text/chat_impl.h: the tree of a chat template (chat_parse.c makes it, chat_eval.c walks it) and its
 * values.
 */
#ifndef GR_OPS_TEXT_CHAT_IMPL_H
#define GR_OPS_TEXT_CHAT_IMPL_H

#include "ops/text/chat_template.h"

/* ---- tree --------------------------------------------------------------------------------------------- */

typedef enum node_kind {
    /* expressions */
    N_NONE,
    N_BOOL,
    N_INT,
    N_FLOAT,
    N_STRING,
    N_NAME,
    N_LIST,   /* args */
    N_TUPLE,  /* args */
    N_DICT,   /* args: key, value, key, value */
    N_ATTR,   /* a.text */
    N_INDEX,  /* a[b] */
    N_SLICE,  /* a[args]: start, stop, step, each with a NULL where left out */
    N_CALL,   /* a(args) */
    N_FILTER, /* a | text(args) */
    N_TEST,   /* a is text(args) */
    N_NOT,
    N_NEG,
    N_POS,
    N_AND,
    N_OR,
    N_BINARY,  /* a op b, arithmetic and ~ */
    N_COMPARE, /* a op b */
    N_COND,    /* b if a else c; c may be NULL */
    N_ARG,  /* text = a in a call or a parameter list; text NULL where positional, a NULL where no default */
    N_STAR, /* *a in a call */
    N_STAR_STAR, /* **a */
    N_CAPTURE,   /* the text that body makes, in a scope of its own */
    /* statements */
    N_TEXT,
    N_OUTPUT,
    N_IF,  /* a; body; or_else */
    N_FOR, /* args: names; a: what to walk, b: condition or NULL; body; or_else */
    N_BREAK,
    N_CONTINUE,
    N_SET,        /* args: names = a */
    N_SET_ATTR,   /* b.text = a */
    N_SCOPE,      /* with, generation: args (text = a); body in a scope of its own */
    N_MACRO,      /* text(args); body */
    N_CALL_BLOCK, /* a: an N_CALL; b: the N_MACRO it gets as `caller` */
} node_kind;

typedef enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
} op;

typedef struct node node;
struct node {
    node_kind kind;
    unsigned line, col;
    unsigned depth; /* of the tree below: bounds the walk's recursion */
    op op;
    const char *text; /* NUL-terminated; n bytes */
    size_t n;
    int64_t i;
    double f;
    node *a, *b, *c, *args, *body, *or_else;
    node *next; /* in a list of statements or arguments */
};

#define CHAT_FILE      "chat_template"
#define CHAT_MAX_DEPTH 200
#define CHAT_MAX_STEPS 20000000
#define CHAT_MAX_BYTES (1 << 26)

struct gr_chat_template {
    gr_arena *arena;
    node *body;
};

gr_status gr_chat_parse(gr_arena *arena, const char *source, size_t n, node **body, gr_diag *d);

/* ---- values ------------------------------------------------------------------------------------------- */

typedef enum value_kind {
    V_UNDEFINED, /* s: its name, for messages */
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_DICT,
    V_LOOP,     /* `loop` */
    V_MACRO,    /* also what `call` gives as `caller` */
    V_METHOD,   /* "x".strip, not yet called */
    V_FUNCTION, /* s: its name: range, namespace ... */
} value_kind;

/* A string and, byte for byte, whether it came from a field; field NULL: none did. */
typedef struct text {
    const char *s;
    const char *field;
    size_t n;
    bool safe; /* by the filter `safe`: + would escape what is added to it */
} text;

/* What Python has for it: they differ in what may be done with them, and in their text. */
typedef enum list_shape {
    LIST,
    TUPLE,
    RANGE,
    KEYS, /* of a mapping: keys(), values(), items() */
    VALUES,
    ITEMS,
    ITERATOR, /* of a filter such as `map`: gives each item once */
} list_shape;

typedef struct value value;
/* Only namespaces and iterators change after they were made. Nothing looks through a namespace but by one
 * name, so depth, in which they count as leaves, bounds the recursion over any value. */
typedef struct list {
    value *v;
    size_t n, cap;
    size_t taken; /* of an iterator */
    unsigned depth;
    list_shape shape;
} list;

typedef struct dict {
    text *keys;
    value *values;
    size_t n, cap;
    unsigned depth;
    bool is_namespace;
} dict;

typedef struct loop_state {
    const list *items;
    size_t i;
} loop_state;

typedef struct frame frame;
typedef struct macro {
    const struct node *def;
    frame *scope; /* where it was defined: what its body sees */
} macro;
typedef struct method method;

struct value {
    value_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        text s;
        list *list;
        dict *dict; /* also a namespace */
        const loop_state *loop;
        const macro *macro;
        const method *method;
    };
};

struct frame {
    dict vars;
    frame *parent;
};

/* Text under construction. */
typedef struct builder {
    gr_str s, field;
} builder;

/* One rendering. All values live in the pool. */
typedef struct render {
    gr_arena *arena;
    gr_diag *d;
    gr_status st;
    const char *date;
    frame root, *scope;
    enum { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;
    builder *out;
    size_t n_bytes, n_steps; /* spent so far: a template must not run away */
    unsigned n_macros;       /* calls in progress */
    const node *at;          /* what is being done, for messages */
    gr_chat_asked asked;
} render;

/* chat_eval.c */
value gr_chat_name_of(const char *name); /* undefined, by its name */
/* Sets r->st; the first failure stands. at NULL: what is being done. */
GR_PRINTF(3, 4) value gr_chat_fail(render *r, const node *at, const char *fmt, ...);
bool gr_chat_spend(render *r, size_t steps); /* false: failed, or the template has run too long */
value gr_chat_eval(render *r, const node *n);
void gr_chat_exec(render *r, const node *body);

/* Arguments of a call, evaluated; by name where one is given. */
typedef struct call_args {
    value *v;
    const char **name; /* NULL: positional */
    size_t n, cap;
} call_args;

/* Argument number i, or the one called name; NULL where there is none. */
const value *gr_chat_arg(const call_args *args, size_t i, const char *name);
void gr_chat_add_arg(render *r, call_args *args, const char *name, value v);

/* Whether args fit the parameters, names with a space between ("_": has no name); else the rendering fails.
 */
bool gr_chat_check_args(render *r, const node *at, const char *what, const char *params,
                        const call_args *args);
bool gr_chat_want_string(render *r, const node *at, const value *v, text *out); /* false: failed */
bool gr_chat_want_int(render *r, const node *at, const value *v, int64_t otherwise, int64_t *out);

typedef value (*gr_chat_fn)(render *r, const node *at, value v, const call_args *args);

/* chat_ops.c: what operators do */
value gr_chat_binary(render *r, const node *at, value a, value b);
value gr_chat_compare(render *r, const node *at, op o, value a, value b);
int gr_chat_order(render *r, const node *at, value a, value b); /* < 0, 0, > 0 */
bool gr_chat_usable(render *r, const node *at, value v);        /* false: v is undefined and r has failed */
value gr_chat_item(render *r, const node *at, value of, value key); /* of[key] */

/* chat_filters.c */
value gr_chat_filter(render *r, const node *at, const char *name, value v, const call_args *args);
bool gr_chat_test(render *r, const node *at, const char *name, value v, const call_args *args);

/* chat_methods.c */
value gr_chat_attribute(render *r, const node *at, value of, const char *name); /* of.name */
value gr_chat_call_method(render *r, const node *at, const method *m, const call_args *args);

/* chat_text.c: functions of texts that are methods and filters. */
value gr_chat_strip(render *r, const node *at, value v, const call_args *args);
value gr_chat_lstrip(render *r, const node *at, value v, const call_args *args);
value gr_chat_rstrip(render *r, const node *at, value v, const call_args *args);
value gr_chat_split(render *r, const node *at, value v, const call_args *args);
value gr_chat_rsplit(render *r, const node *at, value v, const call_args *args);
value gr_chat_splitlines(render *r, const node *at, value v, const call_args *args);
value gr_chat_replace(render *r, const node *at, value v, const call_args *args);
value gr_chat_upper(render *r, const node *at, value v, const call_args *args);
value gr_chat_lower(render *r, const node *at, value v, const call_args *args);
value gr_chat_capitalize(render *r, const node *at, value v, const call_args *args);
value gr_chat_title_method(render *r, const node *at, value v, const call_args *args);
value gr_chat_title_filter(render *r, const node *at, value v, const call_args *args);
size_t gr_chat_count_chars(text t);
bool gr_chat_is_blank(text c); /* white space as Python's str.isspace has it, of one character */

/* chat_value.c */
value gr_chat_string(render *r, const char *s, size_t n, bool field);
value gr_chat_take(render *r, builder *b); /* the text built, as a value; empties b */
value gr_chat_substring(value s, size_t begin, size_t end);
value gr_chat_from_json(render *r, const json_t *j);
value gr_chat_new_list(render *r, list_shape shape);
value gr_chat_new_dict(render *r);
value gr_chat_new_pair(render *r, value a, value b); /* a tuple */
/* What a loop over v walks, as a list: items, keys, characters. Takes all that an iterator has left. Fails
 * where v cannot be walked. */
value gr_chat_items(render *r, const node *at, value v);
void gr_chat_list_push(render *r, list *l, value v);
void gr_chat_dict_set(render *r, dict *d, text key, value v);
void gr_chat_bind(render *r, frame *f, const char *name, value v); /* name is kept */
const value *gr_chat_dict_get(const dict *d, const char *key, size_t n);
bool gr_chat_truth(value v);
bool gr_chat_equal(value a, value b);
bool gr_chat_contains(render *r, const node *at, value in, value what);
int gr_chat_text_compare(text a, text b);
size_t gr_chat_find(text in, size_t from, text what); /* SIZE_MAX: not there */
void gr_chat_put(builder *b, const char *s, size_t n, const char *field);
void gr_chat_put_value(render *r, builder *b, value v); /* as Python's str() */

/* How json.dumps writes. */
typedef struct json_style {
    bool ascii, sort_keys;
    bool lines; /* items on lines of their own, each level deeper by indent */
    text indent, comma, colon;
} json_style;
void gr_chat_put_json(render *r, builder *b, value v, const json_style *style, unsigned level);
/* The character at byte i of t, *len bytes long; negative, and one byte, where it is none. */
int32_t gr_chat_char_at(text t, size_t i, size_t *len);
size_t gr_chat_char_len(const char *s, size_t n); /* bytes of the character at s; n >= 1 */
static inline value gr_chat_bool(bool b)
{
    return (value){.kind = V_BOOL, .b = b};
}
static inline value gr_chat_int(int64_t i)
{
    return (value){.kind = V_INT, .i = i};
}

#endif
