/* ops/chat_impl.h: the tree of a chat template (chat_parse.c makes it, chat_eval.c walks it) and its values.
 */
#ifndef GR_OPS_CHAT_IMPL_H
#define GR_OPS_CHAT_IMPL_H

#include "ops/chat_template.h"

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
    N_DICT,   /* args: key, value, key, value */
    N_ATTR,   /* a.text */
    N_INDEX,  /* a[b] */
    N_SLICE,  /* a[args]: start, stop, step, each with a NULL where left out */
    N_CALL,   /* a(args) */
    N_FILTER, /* a | text(args) */
    N_TEST,   /* a is text(args) */
    N_NOT,
    N_NEG,
    N_AND,
    N_OR,
    N_BINARY,  /* a op b, arithmetic and ~ */
    N_COMPARE, /* a op b */
    N_COND,    /* b if a else c; c may be NULL */
    N_ARG, /* text = a in a call or a parameter list; text NULL where positional, a NULL where no default */
    /* statements */
    N_TEXT,
    N_OUTPUT,
    N_IF,       /* a; body; or_else */
    N_FOR,      /* args: names; a: what to walk, b: condition or NULL; body; or_else */
    N_SET,      /* text = a */
    N_SET_ATTR, /* b.text = a */
    N_MACRO,    /* text(args); body */
} node_kind;

typedef enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
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
    gr_pool *pool;
    node *body;
};

gr_status gr_chat_parse(gr_pool *pool, const char *source, size_t n, node **body, gr_diag *d);

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
    V_MACRO,
} value_kind;

/* A string and, byte for byte, whether it came from a field; field NULL: none did. */
typedef struct text {
    const char *s;
    const char *field;
    size_t n;
} text;

typedef struct value value;
/* Only a namespace changes after it was made, and nothing may hold one but a variable; so no value holds
 * itself, and depth bounds the recursion over any. */
typedef struct list {
    value *v;
    size_t n, cap;
    unsigned depth;
} list;

typedef struct dict {
    text *keys;
    value *values;
    size_t n, cap;
    unsigned depth;
    bool is_namespace;
} dict;

struct value {
    value_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        text s;
        list *list;
        dict *dict; /* also a namespace and `loop` */
        const node *macro;
    };
};

typedef struct frame frame;
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
    gr_pool *pool;
    gr_diag *d;
    gr_status st;
    const char *date;
    frame root, *scope;
    builder *out;
    size_t n_bytes, n_steps; /* spent so far: a template must not run away */
    unsigned n_macros;       /* calls in progress */
    const node *at;          /* what is being done, for messages */
} render;

/* chat_eval.c */
/* Sets r->st; the first failure stands. at NULL: what is being done. */
GR_PRINTF(3, 4) value gr_chat_fail(render *r, const node *at, const char *fmt, ...);
bool gr_chat_spend(render *r, size_t steps); /* false: failed, or the template has run too long */
value gr_chat_eval(render *r, const node *n);
void gr_chat_exec(render *r, const node *body);

/* Arguments of a call, evaluated; by name where one is given. */
typedef struct call_args {
    value v[4];
    const char *name[4]; /* NULL: positional */
    size_t n;
} call_args;

/* Argument number i, or the one called name; NULL where there is none. */
const value *gr_chat_arg(const call_args *args, size_t i, const char *name);

/* chat_filters.c */
value gr_chat_filter(render *r, const node *at, value v, const call_args *args);
bool gr_chat_test(render *r, const node *at, value v, const call_args *args);
value gr_chat_method(render *r, const node *at, value self, const char *name, const call_args *args);

/* chat_value.c */
value gr_chat_string(render *r, const char *s, size_t n, bool field);
value gr_chat_take(render *r, builder *b); /* the text built, as a value; empties b */
value gr_chat_substring(value s, size_t begin, size_t end);
value gr_chat_from_json(render *r, const json_t *j);
value gr_chat_new_list(render *r);
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
void gr_chat_put_value(builder *b, value v); /* as Python's str() */
void gr_chat_put_json(builder *b, value v, int64_t indent, int64_t level);
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
